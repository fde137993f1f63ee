"""Read claims in a small language. Nothing that a user writes is ever run as code.

    expression   a + b   a - b   a * b   a / b   a ** 3 (or a^3, a², a³)   -a   √a   (a)
    dot product  q·k     q @ k   dot(q, k)
    coordinates  q[i]    q[1] is the first
    sums         sum(i, q[i]*k[i])   sum(i<j, …)   sum(i<=j, …)   sum(i, j, …)   sum(x)
    features     [1, √2*x, x[i]*x[j] for i<=j]     functions: sqrt, exp, relu, elu, cos, …
    conditions   … where s > 0, M = D

Everything is bounded: the length of the text, the depth of brackets, the digits of a number, the
size of an exponent and the resulting degree.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from kerneltrick.proofs._tokens import LONGEST, ClaimError, Token, tokens

DEEPEST = 40  # nested brackets
LARGEST_POWER = 16  # exponents
LARGEST_DEGREE = 64  # of nested powers
LARGEST_INDEX = 1000  # of a coordinate, x[1000]
INDICES = ("i", "j", "l", "r")
MOMENTS = ("E", "Var")  # of random variables: E[q·k]
_RELATIONS = ("=", "<=", ">=", "<", ">", "!=", "<<")


__all__ = [
    "INDICES",
    "LONGEST",
    "MOMENTS",
    "ClaimError",
    "Node",
    "Reader",
    "Side",
    "degree",
    "largest_index",
    "names",
    "place",
    "read_expression",
    "read_features",
    "read_relation",
    "renamed",
    "replaced",
]


class Node(NamedTuple):
    """One piece of an expression.

    kinds: number, name, index (x[i]), call, sum, op, neg, list, for, text
    """

    kind: str
    at: int
    value: str | Fraction
    parts: tuple[Node, ...] = ()


class Side(NamedTuple):
    """A relation and the expression to its right. The relation of the first side is empty."""

    relation: str
    node: Node


class Reader:
    """A recursive-descent parser for one claim."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.here, self.depth = text, tokens(text), 0, 0

    @property
    def now(self) -> Token:
        return self.tokens[self.here]

    def take(self, *texts: str) -> Token | None:
        """Consume the next token if it is one of `texts`."""
        token = self.now
        if token.kind in ("op", "name") and token.text in texts:
            self.here += 1
            return token
        return None

    def need(self, text: str, what: str) -> Token:
        token = self.take(text)
        if token is None:
            raise self.error(f"expected {text!r} {what}")
        return token

    def error(self, problem: str, at: int | None = None) -> ClaimError:
        token = self.now
        found = "the claim ends" if token.kind == "end" else f"got {token.text!r}"
        message = f"{problem}, but {found}" if at is None else problem
        return ClaimError(self.text, token.at if at is None else at, message)

    def end(self) -> None:
        if self.now.kind != "end":
            raise self.error("expected the end or an operator")

    def relation(self) -> list[Side]:
        """expression (= | < | … expression)*"""
        sides = [Side("", self.expression())]
        while (token := self.take(*_RELATIONS)) is not None:
            sides.append(Side(token.text, self.expression()))
        return sides

    def conditions(self) -> list[list[Side]]:
        """where relation, relation, … at the end of a claim; empty without `where`."""
        found = list[list[Side]]()
        if self.take("where"):
            found.append(self.relation())
            while self.take(",", "and"):
                found.append(self.relation())
        self.end()
        return found

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"brackets can be nested at most {DEEPEST} deep", self.now.at)
        node = self._term()
        while (token := self.take("+", "-")) is not None:
            node = Node("op", token.at, token.text, (node, self._term()))
        self.depth -= 1
        return node

    def _term(self) -> Node:
        node = self._signed()
        while (token := self.take("*", "/", "·")) is not None:
            node = Node("op", token.at, token.text, (node, self._signed()))
        return node

    def _signed(self) -> Node:
        signs = []
        while (token := self.take("-", "+")) is not None:
            signs.append(token)
        node = self._power()
        if sum(token.text == "-" for token in signs) % 2:
            node = Node("neg", signs[0].at, "-", (node,))
        return node

    def _power(self) -> Node:
        is_root = self.now.text == "√"
        node = self._atom()
        while (token := self.take("**", "²", "³")) is not None:
            if is_root:
                problem = (
                    "write √(a**2) for the root of a power, or (√a)**2 for the power of a root"
                )
                raise self.error(problem, token.at)
            if token.text != "**" and self.now.text in ("²", "³"):
                raise self.error("write exponents with two digits as **23", token.at)
            if token.text == "**":
                value = _constant(self._exponent(), self)
            else:
                value = Fraction(2 if token.text == "²" else 3)
            if abs(value) > LARGEST_POWER or value.denominator > 4:
                raise self.error(
                    f"exponents are numbers from -{LARGEST_POWER} to {LARGEST_POWER}, whole or "
                    "fractions with a denominator up to 4",
                    token.at,
                )
            node = Node("op", token.at, "**", (node, Node("number", token.at, value)))
            if degree(node) > LARGEST_DEGREE:
                raise self.error(
                    f"nested powers can have a degree of at most {LARGEST_DEGREE}", token.at
                )
        return node

    def _exponent(self) -> Node:
        """The exponent after **: a sign, an atom and further powers, from right to left."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"brackets can be nested at most {DEEPEST} deep", self.now.at)
        minus = self.take("-")
        node = self._power()
        self.depth -= 1
        return Node("neg", minus.at, "-", (node,)) if minus else node

    def _atom(self) -> Node:
        token = self.now
        if token.kind == "number":
            self.here += 1
            return Node("number", token.at, Fraction(token.text))
        if token.kind == "name":
            return self._named()
        if self.take("("):
            node = self.expression()
            self.need(")", "to close a '('")
            return node
        if self.take("√"):
            self.depth += 1
            if self.depth > DEEPEST:
                raise self.error(f"brackets can be nested at most {DEEPEST} deep", token.at)
            node = Node("call", token.at, "sqrt", (self._atom(),))
            self.depth -= 1
            return node
        if token.text == "[":
            raise self.error(
                "a list [...] is a whole feature map and cannot be part of an expression", token.at
            )
        raise self.error("expected a number, a name or '('")

    def _named(self) -> Node:
        token = self.tokens[self.here]
        self.here += 1
        if "__" in token.text or len(token.text) > 40:
            raise self.error(f"{token.text!r} is not a name of this language", token.at)
        if token.text in MOMENTS and self.take("["):
            body = self.expression()
            self.need("]", f"to close {token.text}[")
            return Node("call", token.at, token.text, (body,))
        if self.take("["):
            index = self.now
            if index.kind not in ("number", "name") or "." in index.text:
                raise self.error("expected an index such as i or 1")
            if index.kind == "number" and not 1 <= int(index.text) <= LARGEST_INDEX:
                raise self.error(f"coordinates are numbered from 1 to {LARGEST_INDEX}", index.at)
            self.here += 1
            self.need("]", "after the index")
            part = Node(index.kind, index.at, _index_value(index))
            return Node("index", token.at, token.text, (part,))
        if not self.take("("):
            return Node("name", token.at, token.text)
        if token.text == "sum":
            return self._sum(token)
        arguments = [self.expression()]
        while self.take(","):
            arguments.append(self.expression())
        self.need(")", f"to close {token.text}(")
        return Node("call", token.at, token.text, tuple(arguments))

    def _sum(self, token: Token) -> Node:
        """sum(i<=j, body), or sum(vector)."""
        indices = self._indices() if self._at_index(self.here) else None
        if indices is not None:
            self.need(",", "between the indices of a sum and its terms")
        body = self.expression()
        if indices is None and self.now.text == ",":
            raise self.error(f"the indices of a sum are {', '.join(INDICES)}", body.at)
        self.need(")", "to close sum(")
        if indices is None:
            return Node("call", token.at, "sum", (body,))
        return Node("sum", token.at, "", (indices, body))

    def _indices(self) -> Node:
        """i, or i<j, or i<=j<=l, or i, j: names and the signs between them."""
        found, between = list[Node](), list[str]()
        while True:
            if not self._at_index(self.here):
                raise self.error(f"expected an index: {', '.join(INDICES)}")
            if any(self.now.text == x.value for x in found):
                raise self.error(f"the index {self.now.text} occurs twice here", self.now.at)
            found.append(Node("name", self.now.at, self.now.text))
            self.here += 1
            if self.now.text == "," and not self._at_index(self.here + 1):
                break
            token = self.take("<", "<=", ",")
            if token is None:
                break
            between.append(token.text)
        return Node("indices", found[0].at, "|".join(between), tuple(found))

    def _at_index(self, place: int) -> bool:
        token = self.tokens[min(place, len(self.tokens) - 1)]
        after = self.tokens[min(place + 1, len(self.tokens) - 1)]
        return token.kind == "name" and token.text in INDICES and after.text not in ("[", "(")

    def features(self) -> Node:
        """[item, item for i<=j, …]"""
        token = self.need("[", "to begin a feature map")
        items = [self._item()]
        while self.take(","):
            items.append(self._item())
        self.need("]", "to close the feature map")
        return Node("list", token.at, "", tuple(items))

    def _item(self) -> Node:
        if self.now.text == "…":
            raise self.error(
                "write the features in place of …, such as √2*x[i]*x[j] for i<j", self.now.at
            )
        body = self.expression()
        token = self.take("for")
        if token is not None:
            return Node("for", token.at, "", (self._indices(), body))
        loose = _loose_indices(body)
        if len(loose) > 1:
            one, other = (str(x.value) for x in loose[:2])
            raise self.error(
                f"the range of {one} and {other} is missing: add 'for {one}<={other}', "
                f"'for {one}<{other}' or 'for {one}, {other}' after this feature",
                loose[0].at,
            )
        if not loose:
            return body
        # People write x[i]**2 and mean x[i]**2 for i.
        return Node("for", body.at, "", (Node("indices", body.at, "", (loose[0],)), body))


def _loose_indices(node: Node, bound: frozenset[str] = frozenset()) -> list[Node]:
    """The indices of coordinates that are not bound by a sum, each once."""
    if node.kind == "sum":
        inside = bound | {str(part.value) for part in node.parts[0].parts}
        return _loose_indices(node.parts[1], inside)
    if node.kind == "index":
        at = node.parts[0]
        loose = at.kind == "name" and at.value in INDICES and at.value not in bound
        return [at] if loose else []
    found: dict[str, Node] = {}
    for part in node.parts:
        for x in _loose_indices(part, bound):
            found.setdefault(str(x.value), x)
    return list(found.values())


def read_expression(text: str) -> Node:
    """Read a text that is one expression."""
    reader = Reader(text)
    node = reader.expression()
    reader.end()
    return node


def read_relation(text: str) -> list[Side]:
    """Read a text that is expressions with relations between them."""
    reader = Reader(text)
    sides = reader.relation()
    reader.end()
    return sides


def read_features(text: str) -> Node:
    """Read a text that is a feature map [ … ]."""
    reader = Reader(text)
    node = reader.features()
    reader.end()
    return node


def degree(node: Node) -> int:
    """An upper bound on the degree of an expression as a polynomial."""
    below = [degree(part) for part in node.parts]
    if node.kind == "op" and node.value == "**":
        power = node.parts[1].value
        assert isinstance(power, Fraction)
        return max(below[0], 1) * max(1, abs(int(power)))
    if node.kind == "op" and node.value in ("*", "/", "·"):
        return sum(below)
    return max(below, default=1 if node.kind in ("name", "index") else 0)


def names(node: Node) -> set[str]:
    """The names that occur, without functions and indices of sums."""
    if node.kind in ("sum", "for"):
        bound = {part.value for part in node.parts[0].parts}
        return {name for name in names(node.parts[1]) if name not in bound}
    found = {str(node.value)} if node.kind in ("name", "index") else set[str]()
    parts = () if node.kind == "indices" else node.parts
    return found.union(*(names(part) for part in parts))


def has_gaps(node: Node) -> bool:
    """Whether a quotient or a power may be undefined somewhere although its parts are defined."""
    if node.kind != "op" or node.value not in ("/", "**"):
        return False
    base, other = node.parts
    if node.value == "/":
        return bool(names(other))
    power = other.value
    broken = isinstance(power, Fraction) and (power < 0 or power.denominator != 1)
    return broken and bool(names(base))


def place(node: Node, name: str) -> int:
    """The position where a name first occurs; -1 if it does not occur."""
    if node.kind in ("name", "index") and node.value == name:
        return node.at
    found = [at for part in node.parts if (at := place(part, name)) >= 0]
    return min(found, default=-1)


def renamed(node: Node, old: str, new: str) -> Node:
    """The expression with another name for a vector or a letter."""
    value = new if node.kind in ("name", "index") and node.value == old else node.value
    return node._replace(value=value, parts=tuple(renamed(x, old, new) for x in node.parts))


def replaced(node: Node, values: Mapping[str, Node]) -> Node:
    """The expression with other expressions in place of letters."""
    if node.kind == "name" and node.value in values:
        return values[str(node.value)]
    return node._replace(parts=tuple(replaced(x, values) for x in node.parts))


def largest_index(*nodes: Node | None) -> int:
    """The largest number of a coordinate, 3 for x[3]; 1 if there is none."""
    found = 1
    for node in filter(None, nodes):
        if node.kind == "index" and isinstance(node.parts[0].value, Fraction):
            found = max(found, int(node.parts[0].value))
        found = max(found, largest_index(*node.parts))
    return found


def _constant(node: Node, reader: Reader) -> Fraction:
    """The value of an exponent, which consists of small numbers."""
    if node.kind == "number" and isinstance(node.value, Fraction):
        return node.value
    if node.kind == "neg":
        return -_constant(node.parts[0], reader)
    if node.kind == "op":
        left, right = (_constant(part, reader) for part in node.parts)
        if node.value == "**" and right.denominator == 1 and (left or right > 0):
            return left ** int(right)
        if node.value == "/" and right:
            return left / right
        if node.value in ("+", "-", "*"):
            return {"+": left + right, "-": left - right, "*": left * right}[str(node.value)]
    raise reader.error("an exponent must be a number", node.at)


def _index_value(token: Token) -> str | Fraction:
    return Fraction(token.text) if token.kind == "number" else token.text
