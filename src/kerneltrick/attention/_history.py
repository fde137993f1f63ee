"""Going back in a stream: checkpoints, and the inputs read since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kerneltrick._arrays import namespace
from kerneltrick.attention._arguments import check_count


class Reading(NamedTuple):
    """One call: the state before it, if it is kept, and what was read."""

    before: Any
    kept: bool  # whether `before` is a checkpoint
    inputs: tuple[Any, ...]
    length: int


class History:
    """A stream that can go back: checkpoints of its state, and the inputs that were read since.

    A state of constant size forgets what it has added, so it cannot subtract the last tokens again.
    A history keeps an earlier state and reads the tokens after it once more, in the same calls: the
    state is then, to the bit, the one of a stream that never read the others. Use it for drafts
    that may be rejected, as in speculative decoding.

    Parameters
    ----------
    step
        step(state, *inputs) → (output, state): any function that reads tokens. The first state is
        `state`, and states must be values, which nothing changes in place.
    axes
        The axis of tokens in each input, or one for all. The default −2 is that of q, k and v.
    reach
        How many tokens one can go back at least, counted from the furthest token that was read.
        None: to the beginning.
    every
        How many tokens lie between checkpoints at most, where calls are shorter. 1 keeps every
        state, so that nothing is read twice; more keeps fewer states and reads up to `every`
        tokens again.

    A call that is longer than `reach` is read in two parts, so that inputs of about reach + every
    tokens are held, and reach / every + 2 states.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 100, 8))
    >>> def step(state, q, k, v):
    ...     return kt.linear_attention(q, k, v, causal=True, state=state, return_state=True)
    >>> history = kt.History(step, reach=8, every=4)
    >>> first = history.read(q[:90], k[:90], v[:90])
    >>> draft = history.read(q[:5], k[:5], v[:5])  # five tokens that turn out to be wrong
    >>> history.back(5)
    >>> rest = history.read(q[90:], k[90:], v[90:])
    >>> whole = kt.linear_attention(q, k, v, causal=True)
    >>> np.allclose(whole, np.concatenate([first, rest])), history.state.stop
    (True, 100)
    """

    def __init__(
        self,
        step: Callable[..., tuple[Any, Any]],
        state: Any = None,
        *,
        axes: int | tuple[int, ...] = -2,
        reach: int | None = None,
        every: int = 64,
    ) -> None:
        self.step, self.state, self.axes = step, state, axes
        self.reach = None if reach is None else check_count("History", "reach", reach)
        self.every = check_count("History", "every", every, least=1)
        self._readings: list[Reading] = []

    def __copy__(self) -> History:
        """The same past, which goes on independently."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _readings=[*self._readings])
        return made

    @property
    def held(self) -> int:
        """How many tokens one can go back now."""
        return sum(reading.length for reading in self._readings)

    def read(self, *inputs: Any) -> Any:
        """Read tokens, and return their output."""
        plan, before = self._plan(self._length(inputs)), (self.state, [*self._readings])
        try:
            outputs = [self._read(self._cut(inputs, start, stop)) for start, stop in plan]
        except BaseException:  # of a call that is read in two parts the first may have been read
            self.state, self._readings = before
            raise
        if self.reach is not None:
            self.trim(self.reach)
        return outputs[0] if len(outputs) == 1 else self._join(outputs)

    def back(self, count: int) -> None:
        """Go back `count` tokens."""
        count = check_count("History.back", "count", count)
        if count > self.held:
            raise ValueError(
                f"back can undo the last {self.held} tokens that were kept, not {count}; "
                f"ask for them with reach= (it is {self.reach})"
            )
        if not count:
            return
        left, readings = self.held - count, self._readings
        # The last checkpoint at or before the place to go to.
        place, start, passed = 0, 0, 0
        for number, reading in enumerate(readings):
            if reading.kept and passed <= left:
                place, start = number, passed
            passed += reading.length
        self.state, again = readings[place].before, readings[place:]
        self._readings = readings[:place]
        for reading in again:
            size = min(reading.length, left - start)
            if size <= 0:
                break
            self._read(self._cut(reading.inputs, 0, size), kept=reading.kept)
            start += size

    def trim(self, reach: int) -> None:
        """Drop what is not needed to go back `reach` tokens."""
        later = 0
        for number in range(len(self._readings) - 1, -1, -1):
            reading = self._readings[number]
            later += reading.length
            if reading.kept and later >= reach:
                self._readings = self._readings[number:]
                return

    def _read(self, inputs: tuple[Any, ...], kept: bool | None = None) -> Any:
        before = self.state
        if kept is None:
            kept = self._since() >= self.every or not self._readings
        output, self.state = self.step(before, *inputs)
        held = before if kept else None
        self._readings.append(Reading(held, kept, inputs, self._length(inputs)))
        return output

    def _since(self) -> int:
        """The tokens since the last checkpoint."""
        count = 0
        for reading in reversed(self._readings):
            count += reading.length
            if reading.kept:
                break
        return count

    def _plan(self, length: int) -> list[tuple[int, int]]:
        """The parts in which a call is read."""
        if self.reach is None or length <= self.reach:
            return [(0, length)]
        cut = length - self.reach
        return [(0, cut), (cut, length)] if self.reach else [(0, length)]

    def _axis(self, number: int) -> int:
        return self.axes if isinstance(self.axes, int) else self.axes[number]

    def _length(self, inputs: tuple[Any, ...]) -> int:
        return int(inputs[0].shape[self._axis(0)])

    def _cut(self, inputs: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
        """The tokens start … stop−1."""
        if (start, stop) == (0, self._length(inputs)):
            return inputs
        return tuple(_tokens(x, self._axis(i), start, stop) for i, x in enumerate(inputs))

    def _join(self, outputs: list[Any]) -> Any:
        xp = namespace(output=outputs[0])
        return xp.concat(outputs, axis=self._axis(0))


def _tokens(x: Any, axis: int, start: int, stop: int) -> Any:
    where: list[Any] = [slice(None)] * x.ndim
    where[axis] = slice(start, stop)
    return x[tuple(where)]
