"""The model card of a linearised model: what it is, how good it is, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kerneltrick._text import shown
from kerneltrick._version import __version__
from kerneltrick.hf._evaluate import Evaluation, EvaluationRow
from kerneltrick.hf._linearized import Linearized


def model_card(
    model: Linearized,
    teacher: str,
    judged: Evaluation,
    errors: Mapping[int, float],
    kept: Mapping[int, str],
    remarks: Sequence[str],
) -> str:
    """Return the card as Markdown.

    teacher: the name of the original model.
    errors: the mean output error of the fitted map of each layer.
    kept: the layers that keep softmax, with the reason.
    remarks: sentences about how the model was made.
    """
    names = list(judged.rows[1].figures)
    lines = [
        f"# {teacher}, linearised",
        "",
        f"kerneltrick {__version__} replaced the softmax attention of {teacher} by fitted feature "
        f"maps. {_weights(model)}",
        "",
        f"**{judged.verdict}** The model was evaluated on {judged.windows} windows of "
        f"{judged.length} tokens that were not used for fitting:",
        "",
        "| | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
        *(
            f"| {row.name} | " + " | ".join(shown_figure(row, name) for name in names) + " |"
            for row in judged.rows
        ),
        "",
    ]
    softmax, own = judged.rows[0].state_bytes, judged.rows[1].state_bytes
    if softmax is not None and own is not None:
        lines += [
            f"After {judged.length} tokens, the state of one stream takes {own:,} bytes. The keys "
            f"and values of the original take {softmax:,} bytes.",
            "",
        ]
    for words in remarks:
        lines += [words, ""]
    if judged.curve:
        what = "perplexity" if "perplexity" in names else "cosine"
        lines += [f"| heads that see the whole text | share | {what} |", "|---|---|---|"]
        lines += [
            f"| {x.heads} | {x.share:.0%} | {shown(x.quality, 4)}{mark} |"
            for x in judged.curve
            for mark in (" (the knee)" if x.knee else "",)
        ]
        lines.append("")
    lines += ["| layer | attention | error |", "|---|---|---|"]
    for number, layer in enumerate(model.config.layers):
        why = f" ({kept[number]})" if number in kept else ""
        error = f"{errors[number]:.3f}" if number in errors else ""
        lines.append(f"| {number} | `{layer['dial']}`{why} | {error} |")
    kind = "AutoModelForCausalLM" if model.config.language else "AutoModel"
    lines += [
        "",
        "The error is ‖O − O_softmax‖ / ‖O_softmax‖ on held-out tokens, averaged over heads, right "
        "after the maps were fitted.",
        "",
        "Import `kerneltrick.hf` first; loading fails otherwise, by design.",
        "",
        "```python",
        "import kerneltrick.hf",
        f"from transformers import {kind}",
        "",
        f'model = {kind}.from_pretrained("this folder")',
        "```",
        "",
    ]
    return "\n".join(lines)


def shown_figure(row: EvaluationRow, name: str) -> str:
    """Return a figure of a row as text, with its standard error if it has one."""
    error = f" ± {shown(row.errors[name], 2)}" if row.errors.get(name) else ""
    return f"{shown(row.figures[name], 4)}{error}"


def _weights(model: Linearized) -> str:
    return {
        "lora": "The attention weights were trained with LoRA.",
        "all": "The attention weights were trained.",
    }.get(model.config.finetune, "The weights of the original are unchanged.")
