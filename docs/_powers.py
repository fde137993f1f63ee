"""x^{2}, e^t and x_i in running text as raised and lowered letters.

The pages write short formulas as plain text, so that they read well wherever Markdown is shown.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

MARK = re.compile(
    r"\^\{(?P<raised>[^{}]+)\}"
    r"|(?<=[A-Za-z0-9])\^(?P<power>[a-z0-9])(?![A-Za-z0-9_(])"
    r"|_\{(?P<lowered>[^{}]+)\}"
    r"|(?<![A-Za-z0-9_.])(?P<base>x?W|[A-Za-zα-ωΑ-Ω]′?)"
    r"_(?P<index>[A-Za-z0-9α-ω]{1,2})(?![A-Za-z0-9_])(?:(?!\()|(?<=[α-ω]_.))"  # f_x(…) is code
)
AS_IT_IS = (
    nodes.literal,
    nodes.literal_block,
    nodes.doctest_block,
    nodes.math,
    nodes.math_block,
    nodes.raw,
    nodes.comment,
    addnodes.desc_signature,
)


class Powers(SphinxTransform):
    """Replace the marks outside code and mathematics."""

    default_priority = 900

    def apply(self, **options: Any) -> None:
        for text in list(self.document.findall(nodes.Text)):
            if MARK.search(text.astext()) and not _as_it_is(text):
                text.parent.replace(text, _parts(text.astext()))


def _as_it_is(node: nodes.Node) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, AS_IT_IS):
            return True
        parent = parent.parent
    return False


def _parts(text: str) -> list[nodes.Node]:
    parts: list[nodes.Node] = []
    end = 0
    for mark in MARK.finditer(text):
        parts.append(nodes.Text(text[end : mark.start()] + (mark["base"] or "")))
        raised, lowered = mark["raised"] or mark["power"], mark["lowered"] or mark["index"]
        if raised:
            parts.append(nodes.superscript("", raised))
        else:
            parts.append(nodes.subscript("", lowered))
        end = mark.end()
    return [*parts, nodes.Text(text[end:])]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(Powers)
    return {"parallel_read_safe": True}
