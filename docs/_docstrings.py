"""Docstrings as reST: they are plain text, with `names` in backquotes and doctests.

Characters that mean something to reST are escaped, `names` become literals or links, lines that
were broken or aligned on purpose stay so, and numpydoc's sections become lists.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator

Link = Callable[[str], str | None]

SECTIONS = {"Parameters", "Attributes", "Returns", "Examples"}
FULL = 78  # a line with room for another word below this width was broken on purpose


def to_rest(lines: list[str], link: Link) -> list[str]:
    """Convert a docstring to reST. `link(name)` returns the target of a name, or None."""
    written: list[str] = []
    section = ""
    for block in _blocks(lines):
        if len(block) > 1 and block[0] in SECTIONS and set(block[1]) == {"-"}:
            section, block = block[0], block[2:]
            if block[:1] != [">>>"] and section != "Examples":
                written += [f".. rubric:: {section}", ""]
            if not block:
                continue
        if section in ("Parameters", "Attributes") and not block[0].startswith(">>>"):
            written += [*_items(block, link), ""]
            section = ""
        else:
            written += [*_block(block, link), ""]
    return written


def fields(value: type, link: Link) -> list[str]:
    """List the fields of a class with their trailing comments."""
    try:
        source = inspect.getsource(value)
    except (OSError, TypeError):  # an alias of a type that is defined elsewhere
        return []
    body = re.split(r"^    (?:def|@)", source, maxsplit=1, flags=re.M)[0]
    found = re.findall(r"^    ([a-z]\w*): ([^#=\n]+?)(?: = [^#\n]*?)?(?:  # (.*))?$", body, re.M)
    if not any(comment for _, _, comment in found):
        return []
    written = [".. rubric:: Fields", ""]
    for name, kind, comment in found:
        item = f"- **{_escaped(name)}** : ``{kind}``"
        written.append(item + (f", {_inline(comment, link)}" if comment else ""))
    return [*written, ""]


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line.rstrip())
        elif block:
            yield block
            block = []


def _block(block: list[str], link: Link) -> list[str]:
    if block[0].lstrip().startswith(">>>"):
        return block
    if block[0].startswith("- "):
        return [_inline(line, link) for line in block]
    if block[0].startswith(" ") or _aligned(block):
        return ["::", "", *(f"    {line}" for line in block)]
    kept = [_inline(line, link) for line in _broken_on_purpose(block)]
    return kept if len(kept) == 1 else [f"| {line}" for line in kept]


def _aligned(block: list[str]) -> bool:
    """Tell whether a block has columns aligned with spaces."""
    return len(block) > 1 and any(re.search(r"\S {2,}\S|^ ", line) for line in block)


def _broken_on_purpose(block: list[str]) -> list[str]:
    """Join the wrapped lines of a block."""
    kept = [block[0]]
    for before, line in itertools.pairwise(block):
        if len(before) + 1 + len(line.split()[0]) <= FULL:
            kept.append(line)
        else:
            kept[-1] += " " + line
    return kept


def _items(block: list[str], link: Link) -> list[str]:
    """Parse `name : type`, with or without an indented description."""
    items: list[tuple[str, list[str]]] = []
    for line in block:
        if line.startswith(" ") and items:
            items[-1][1].append(line.strip())
        else:
            items.append((line, []))
    written = []
    for head, description in items:
        names, _, kind = head.partition(" : ")
        written.append(f"- **{_escaped(names)}**" + (f" : {_inline(kind, link)}" if kind else ""))
        if description:
            written += ["", "  " + _inline(" ".join(description), link), ""]
    return written


def _inline(text: str, link: Link) -> str:
    parts = re.split(r"`([^`]+)`", text)
    written = _escaped(parts[0])
    for code, after in zip(parts[1::2], parts[2::2], strict=True):
        target = link(code)
        written += (
            "\\ " if written and not written[-1].isspace() else ""
        )  # reST needs a boundary here
        written += f":py:obj:`{code} <{target}>`" if target else f"``{code}``"
        written += ("\\ " if after[:1].isalnum() else "") + _escaped(after)
    return written


def _escaped(text: str) -> str:
    text = re.sub(r"([\\*`|_<>])", r"\\\1", text)
    return re.sub(r"docs/([\w\\]+)\.md", lambda page: _page(page[1].replace("\\", "")), text)


def _page(name: str) -> str:
    return f":doc:`/docs/{name}`"
