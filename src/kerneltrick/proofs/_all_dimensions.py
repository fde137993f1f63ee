"""When what holds in small dimensions holds in every one.

A claim in sums over coordinates, checked in dimension d, holds in every dimension if setting
coordinates to 0 turns it into the claim of fewer dimensions, if no coordinate is named by its
number, and if no monomial has more than d coordinates: then every monomial of a larger dimension
already occurred, under other numbers. That is decided from how the claim is written.
"""

from __future__ import annotations

from fractions import Fraction

from kerneltrick.proofs._syntax import Node, degree, names


def holds_in_every_dimension(phi: Node, kernel: Node, d: int) -> bool:
    """Whether φ(q)·φ(k) = kernel in dimensions 1…d implies it in all."""
    if degree(kernel) > d or 2 * degree(phi) > d:
        return False
    return all("d" not in names(x) and _restricts(x) for x in (phi, kernel))


def _restricts(node: Node) -> bool:
    """Whether setting coordinates to 0 gives the same expression in fewer dimensions."""
    if node.kind == "index":
        return not isinstance(node.parts[0].value, Fraction)
    if node.kind in ("sum", "for"):
        indices, body = node.parts
        vanishing = all(_vanishes(body, str(index.value)) for index in indices.parts)
        return vanishing and _restricts(body)
    if node.kind == "list":
        return all(_restricts(item) and _plain_item(item) for item in node.parts)
    if node.kind == "call" and node.value not in ("sqrt", "dot", "norm2"):
        return False
    return all(_restricts(part) for part in node.parts)


def _vanishes(node: Node, index: str) -> bool:
    """Whether an expression is surely 0 where the coordinates with this index are."""
    if node.kind == "index":
        return node.parts[0].value == index
    if node.kind == "neg":
        return _vanishes(node.parts[0], index)
    if node.kind != "op":
        return False
    left, right = node.parts
    if node.value in ("*", "·"):
        return _vanishes(left, index) or _vanishes(right, index)
    if node.value == "/":
        return _vanishes(left, index)
    if node.value == "**":
        return isinstance(right.value, Fraction) and right.value > 0 and _vanishes(left, index)
    return _vanishes(left, index) and _vanishes(right, index)


def _plain_item(item: Node) -> bool:
    """Whether a feature without `for` is a number, or a multiple of x, but not such as x + 1."""
    if item.kind == "for" or "x" not in names(item):
        return True
    if item.kind == "name":
        return True
    if item.kind == "neg":
        return _plain_item(item.parts[0])
    if item.kind == "op" and item.value in ("*", "·", "/"):
        left, right = item.parts
        if "x" in names(left) and "x" in names(right):
            return item.value == "·" and left.kind == right.kind == "name"
        return _plain_item(left) and _plain_item(right)
    return False
