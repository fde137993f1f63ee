"""Which heads need the whole text: each is limited alone, or freed alone, and the model is watched.

Heads that predict text and heads that recall facts are different ones, so both are asked for: plain
text, and texts with a planted fact. Heads that recall stand in for each other. Limiting one at a
time does not show them; freeing one among limited ones does.

What a head is worth depends on the heads beside it. So gates are measured twice: all are closed a
little, which shows the heads that matter while most see the whole text; and the better half of them
is closed wholly, while the others stay limited.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kerneltrick._progress import Progress, ProgressReport
from kerneltrick._version import __version__
from kerneltrick.analysis import Store, run_key
from kerneltrick.attention import Dial
from kerneltrick.hf._capture import check_original, load_network, place_of, quiet
from kerneltrick.hf._linearized import Head
from kerneltrick.hf._passkey import Passkey
from kerneltrick.hf._probe import Probe, Run
from kerneltrick.hf._recorder import register as register_recorder
from kerneltrick.hf._texts import model_kind

PLACES = 256  # positions of a window whose predictions are compared
AGAIN = " among half"  # the end of the names of measures of the second round
ROWS = 16  # variants in one batch, for a planted fact


class _Round(NamedTuple):
    """A round of the fast ranking, in which gates go from 1 to `end`."""

    name: str
    end: float
    points: int  # values of the gates at which gradients are taken, on a text …
    tail_points: int  # … and for a planted fact, which is cheaper

    def values(self, points: int) -> list[float]:
        """Return the values of the gates, from `end` to 1: the midpoints of equal pieces."""
        at = (np.arange(points) + 0.5) / points
        found: list[float] = (self.end + (1 - self.end) * at).tolist()
        return found


ROUNDS = (_Round("gate", 0.75, 1, 2), _Round("gate" + AGAIN, 0.0, 2, 8))


@dataclasses.dataclass(frozen=True)
class HeadRanking:
    """How much the model loses, head by head, without the whole text.

    scores: for each measure, an array (layers, key–value heads). "limited" is how far the output
        moves if that head alone is limited to the window, and "freed" what is won back if it alone
        sees the whole text among limited heads. "gate" is the share of a head in the loss while
        all heads are limited a little, and "gate among half" the same for the better half of the
        heads, while they are limited wholly and the others already are. Names that begin with
        "planted" are the same for the answers to planted facts.
    window, sinks: what a limited head sees.
    """

    scores: Mapping[str, NDArray[np.float64]]
    window: int
    sinks: int

    @property
    def shape(self) -> tuple[int, int]:
        """The number of layers, and of key–value heads in each."""
        layers, heads = next(iter(self.scores.values())).shape
        return layers, heads

    @property
    def order(self) -> tuple[Head, ...]:
        """All heads, those that need the whole text most first.

        A head counts with its share of the total in each measure. Text counts as much as planted
        facts, and the measures of one kind count alike. If the better half of the heads was
        measured again, the second measure orders that half.
        """
        again = {name: x for name, x in self.scores.items() if name.endswith(AGAIN)}
        first = self._total({name: x for name, x in self.scores.items() if name not in again})
        found = np.argsort(-first, kind="stable")
        if again:
            half = found[: _half(len(found))]
            found[: len(half)] = half[np.argsort(-self._total(again)[half], kind="stable")]
        return tuple(Head(*map(int, np.unravel_index(at, self.shape))) for at in found)

    def _total(self, measures: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the share of each head in text plus its share in planted facts, in one row."""
        total = np.zeros(self.shape)
        for planted in (False, True):
            kind = [x for name, x in measures.items() if name.startswith("planted") == planted]
            for scores in kind:
                gains = np.maximum(scores, 0)
                total += gains / max(gains.sum(), np.finfo(np.float64).tiny) / len(kind)
        return total.ravel()

    def whole(self, count: int) -> dict[int, tuple[int, ...]]:
        """Return the heads that see the whole text if `count` of them may, by layer."""
        found: dict[int, list[int]] = {}
        for layer, head in self.order[:count]:
            found.setdefault(layer, []).append(head)
        return {layer: tuple(sorted(found[layer])) for layer in sorted(found)}

    def record(self) -> dict[str, Any]:
        """Return the ranking as plain values; `from_record` reads them."""
        scores = {name: x.tolist() for name, x in self.scores.items()}
        return {"window": self.window, "sinks": self.sinks, "scores": scores}

    @staticmethod
    def from_record(found: Mapping[str, Any]) -> HeadRanking:
        """Return the ranking that `record` described."""
        scores = {name: np.array(x, dtype=np.float64) for name, x in found["scores"].items()}
        return HeadRanking(scores, found["window"], found["sinks"])


def rank_heads(
    model: str | os.PathLike[str] | Any,
    windows: Sequence[Sequence[int]],
    *,
    window: int = 64,
    sinks: int = 4,
    dials: Mapping[int, Dial] | None = None,
    planted: Sequence[Passkey] = (),
    fast: bool = False,
    progress: ProgressReport | None = None,
    resume: Path | None = None,
) -> HeadRanking:
    """Measure how much each key–value head of a model needs the whole text.

    The output is compared with the model's own: by the Kullback–Leibler divergence of the next
    token for models that predict tokens, and otherwise by ‖e − e'‖² / ‖e‖², where e is the
    embedding of a text, the mean of the last hidden states.

    model: the folder of the model, its name on the hub, or the model itself.
    windows: token numbers, in windows that are much longer than `window`.
    window, sinks: what a limited head sees: the last tokens, and the first ones.
    dials: the map that a limited head has beside its window and sinks, by layer. The default is
        none. Heads whose map is good need the whole text less.
    planted: texts with planted facts (see `passkeys`), for models that predict tokens.
    fast: take the gradient of a gate per head instead of limiting and freeing heads one by one.
        The time then does not depend on the number of heads.
    progress: called with what is being done, how many steps are done, and how many there are.
    resume: the file that keeps finished pieces, so that the same call continues.

    >>> import torch, transformers, kerneltrick.hf
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...     num_attention_heads=4, num_key_value_heads=2,
    ... )
    >>> model = transformers.AutoModelForCausalLM.from_config(config)
    >>> ids = torch.arange(64).reshape(2, 32).tolist()
    >>> found = kerneltrick.hf.rank_heads(model, ids, window=4, sinks=1)
    >>> sorted(found.scores), found.scores["freed"].shape, len(found.order)
    (['freed', 'limited'], (2, 2), 4)
    """
    network = _load(place_of(model)) if isinstance(model, (str, os.PathLike)) else model
    if min(map(len, windows), default=0) <= window + sinks:
        raise ValueError(
            f"rank_heads needs windows of more than {window + sinks} tokens, as the window and the "
            "sinks are all of a shorter text"
        )
    weights = next(iter(network.parameters())).detach().flatten()[:64].double().numpy()
    given: list[Sequence[int] | Passkey] = [*windows, *planted]
    beside = [str(dial) for dial in (dials or {}).values()]
    key = run_key(__version__, str(network.config), weights, window, sinks, beside, fast, given)
    store = Store(resume, key)
    rounds: tuple[_Round | None, ...] = ROUNDS if fast else (None,)
    scores: dict[str, NDArray[np.float64]] = {}
    with Probe(network, window, sinks, dials) as probe:
        among = probe.gates(1)
        total = sum(len(_Text(probe, x).pieces(each, among)) for each in rounds for x in given)
        meter, done = Progress("ranking heads", total, progress), 0
        for each in rounds:
            for number, x in enumerate(given):
                text = _Text(probe, x)
                count = len(planted) if isinstance(x, Passkey) else len(windows)
                for piece in text.pieces(each, among):
                    meter(done)
                    part, done = f"{number} {piece.name} {piece.part}", done + 1
                    if store.get(part) is None:
                        store.put(part, piece.measure().double().tolist())
                    found = scores.setdefault(piece.name, np.zeros(probe.shape))
                    found[piece.layers] += np.array(store.get(part)) / count
            among = probe.gates(0)
            for head in HeadRanking(scores, window, sinks).order[: _half(among.numel())]:
                among[head] = 1
        meter.close(total)
    return HeadRanking(scores, window, sinks)


def _half(heads: int) -> int:
    """Return how many heads are measured again."""
    return -(-heads // 2)


def _load(where: str) -> Any:
    register_recorder()
    with quiet():
        config, kind = model_kind(where)
        check_original(where, config)
        return load_network(where, config, kind)


class _Measurement(NamedTuple):
    """A piece of the work: the scores (layers, heads) of some layers on one text."""

    name: str
    part: str  # what tells it from other pieces of that name
    layers: slice
    measure: Callable[[], Any]


class _Text:
    """A text, what the model makes of it, and how far variants are from that.

    With a planted fact, the gates act on the question and the answer alone, and the tokens before
    are read once: the heads that recall are those that look back from there.
    """

    def __init__(self, probe: Probe, given: Sequence[int] | Passkey) -> None:
        self.probe, self.passkey = probe, given if isinstance(given, Passkey) else None
        self.ids = given.ids if isinstance(given, Passkey) else given
        self.kind = "" if self.passkey is None else "planted "
        self.tail = 0
        self.places: Any = None
        if self.passkey is not None:
            self.tail = self.passkey.question + self.passkey.answer
            self.places = torch.arange(self.passkey.question - 1, self.tail - 1)
        elif probe.language:
            first = probe.window + probe.sinks  # before, nothing changes
            self.places = torch.arange(first, len(self.ids), 1 + (len(self.ids) - first) // PLACES)
        self._start: Run | None = None  # the run that variants start from
        self._wanted: Any = None  # the outcome of the model itself
        self._lost: Any = None  # the loss with all heads limited

    def pieces(self, gates: _Round | None, among: Any) -> list[_Measurement]:
        """Return the measurements of a round of gates, or else of heads one by one.

        among: the gates of the heads that are measured (1), while the others stay limited (0).
        """
        layers, heads = self.probe.shape
        if gates is not None:
            # The variants of a planted fact are short enough for one batch.
            values = gates.values(gates.tail_points if self.tail else gates.points)
            step = (1 - gates.end) / len(values)
            return [
                _Measurement(
                    self.kind + gates.name,
                    f"{batch[0]:g}",
                    slice(0, layers),
                    functools.partial(self.gradient, batch, step, among),
                )
                for batch in ([values] if self.tail else [[x] for x in values])
            ]
        step = max(1, ROWS // heads) if self.tail else 1
        return [
            _Measurement(
                self.kind + ("limited" if limited else "freed"),
                str(start),
                slice(start, min(start + step, layers)),
                functools.partial(self.change, start, min(start + step, layers), limited),
            )
            for limited in (True, False)
            for start in range(0, layers, step)
        ]

    def change(self, start: int, end: int, limited: bool) -> Any:
        """Return how far each head of some layers moves the output, alone."""
        with torch.inference_mode():
            self._begin(limited)
            heads = self.probe.shape[1]
            gates = self.probe.gates(limited).repeat((end - start) * heads, 1, 1)
            for row in range(len(gates)):
                gates[row, start + row // heads, row % heads] = not limited
            losses = self._losses(self.probe.vary(gates, self.places))
            return (losses if limited else self._lost - losses).reshape(-1, heads)

    def gradient(self, values: Sequence[float], step: float, among: Any) -> Any:
        """Return the share of each head in what is lost while gates close, in part.

        The loss at the end is the integral of the gradients along the way, which falls to the heads
        one by one (integrated gradients).

        values: the values of the gates at which gradients are taken.
        step: how much of the way each of them stands for.
        among: the gates that move, as in `pieces`.
        """
        with torch.no_grad():
            self._begin(True)
        gates = torch.stack([x * among for x in values]).requires_grad_(True)
        self._losses(self.probe.vary(gates, self.places)).sum().backward()
        return -gates.grad.sum(0) * among * step

    def _begin(self, limited: bool) -> None:
        """Run the model as it is; then, if variants start there, with all heads limited."""
        probe, start = self.probe, self._start
        if start is not None and start is probe.last and bool(start.gates.all()) == limited:
            return
        places = self.places
        if self.tail:
            places = places + (len(self.ids) - self.tail)
        self._wanted = probe.run(self.ids, probe.gates(1), places)
        if self.tail or not limited:
            out = probe.run(self.ids, probe.gates(limited), self.places, self.tail)
            self._lost = self._losses(out)
        self._start = probe.last

    def _losses(self, found: Any) -> Any:
        """Return the distance of each row from what the model itself gives."""
        if self.probe.language:
            logs = found.log_softmax(-1)
            wanted = self._wanted.log_softmax(-1).expand_as(logs)
            each = torch.nn.functional.kl_div(logs, wanted, log_target=True, reduction="none")
            return each.sum(-1).mean(-1)
        return (found - self._wanted).square().sum(-1) / self._wanted.square().sum(-1)
