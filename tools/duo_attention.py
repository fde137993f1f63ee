"""DuoAttention's way to find the heads that need the whole text, restated for a comparison.

Xiao et al. 2024 (arXiv 2410.10819), section 3.2: a gate per key–value head mixes attention to the
whole text (1) with attention to a window and sinks (0). The gates start at 1 and are trained on
planted facts, so that the last hidden states of the answers stay those of the model, with a penalty
on the mean of the gates. The weights of the model stay as they are. Heads with large gates need
the whole text.

The paper trains for 1,000 or 2,000 steps on texts of up to 32,000 tokens with ten facts each; here
both are shorter. The learning rate, the penalty and the loss are those of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kerneltrick import hf
from kerneltrick._progress import ProgressReport
from kerneltrick.hf._probe import Probe

RATE, PENALTY = 0.02, 0.05
STEPS = 80


def duo_ranking(
    network: Any,
    planted: Sequence[hf.Passkey],
    window: int,
    sinks: int,
    steps: int = STEPS,
    progress: ProgressReport | None = None,
) -> hf.HeadRanking:
    """Train a gate per head on planted facts, and rank the heads by their gates."""
    with Probe(network, window, sinks) as probe:
        gates = probe.gates(1).requires_grad_(True)
        optimizer = torch.optim.AdamW([gates], lr=RATE, weight_decay=0)
        for step in range(steps):
            if progress is not None:
                progress("training gates", step, steps)
            text = planted[step % len(planted)]
            with torch.no_grad():
                wanted = answer_states(probe, text, probe.gates(1))
            lost = (answer_states(probe, text, gates) - wanted).square().mean()
            optimizer.zero_grad()
            (lost + PENALTY * gates.abs().mean()).backward()
            # The rate rises over the first fifth of the steps, and falls over the last.
            ends = (step + 1) / (steps / 5), (steps - step) / (steps / 5)
            optimizer.param_groups[0]["lr"] = RATE * min(1.0, *ends)
            optimizer.step()
            with torch.no_grad():
                gates.clamp_(0, 1)
    return hf.HeadRanking({"planted gate": gates.detach().double().numpy()}, window, sinks)


def answer_states(probe: Probe, text: hf.Passkey, gates: Any) -> Any:
    """Return the last hidden states from which the model predicts the answer."""
    kept = []
    head = probe.network.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    try:
        end = len(text.ids) - 1
        probe.run(text.ids, gates, torch.arange(end - text.answer, end))
    finally:
        hook.remove()
    return kept[0].float()
