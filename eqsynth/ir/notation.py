"""Tensor comprehensions: parse the text of an operator's definition into a scope.

    (a, b) [*n, i, j] = sum(k) a[*n, i, k] * b[*n, k, j]
    (x, w; s, t) [n, f, h, w] = sum(c, r) x[n, c, s*h + r - t] * w[f, c, r]

The parentheses name the tensors and, after ``;``, the integer attributes. The head ``[…]`` names
the result's axes: ``*n`` any number of axes, ``*n:r`` exactly ``r``. In a read, ``^n`` is ``*n``
aligned at the right, with index 0 where the tensor's extent is 1 (broadcasting). A reduction
iterator has the extent of an axis that it indexes by itself (``k`` above). The right side is scalar
arithmetic: ``+ - * /``, functions by name, reads ``x[…]`` or ``x[… else v]`` with a fill, and
``(i)``, an index as a number; Python's parser reads it after the stars are expanded. ``where``
introduces local tensors over axes of the head, each of which may read the ones before it:

    (x; a) [*n, *m:a] = x[*n, *m] - c[*n] where c[*n] = mean(*m) x[*n, *m]
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eqsynth.errors import RuleError
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.index import Index
from eqsynth.ir.normal import canonical
from eqsynth.ir.scalar import Call, Num, Read, Scalar, Value, product, total
from eqsynth.ir.scopes import closed
from eqsynth.ir.tensor import Input, Scope, Tensor, over
from eqsynth.ir.types import Shape

_FORM = re.compile(
    r"^\s*\((?P<names>[^)]*)\)\s*\[(?P<head>[^\]]*)\]\s*="
    r"\s*(?:(?P<reducer>sum|max|min|prod|mean)\((?P<reduced>[\w\s,*]*)\))?\s*(?P<body>.*)$",
    re.S,
)
_WHERE = re.compile(r"\s+where\s+")
READ = re.compile(r"(\w+)\[([^\]]*)\]")


@dataclass(frozen=True)
class Parts:
    """The parts of a comprehension's text, before any tensor is known.

    >>> parts_of("(x, w; s) [*n, j] = sum(k) x[*n, s*k] * w[j, k else 1]").reads
    (('x', ('*n', 's*k')), ('w', ('j', 'k')))
    """

    tensors: tuple[str, ...]
    numbers: tuple[str, ...]
    head: tuple[str, ...]
    reducer: str
    reduced: tuple[str, ...]
    body: str
    local: tuple[str, ...]

    @property
    def reads(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each read of an argument: the tensor's name, and the texts of its indices."""
        found = [
            (name, tuple(split(inside.partition(" else ")[0])))
            for text in (self.body, *self.local)
            for name, inside in READ.findall(text)
        ]
        return tuple((name, items) for name, items in found if name in self.tensors)


def parts_of(text: str) -> Parts | None:
    """Split a comprehension into its parts; None if the text isn't a comprehension."""
    whole, *local = _WHERE.split(text)
    form = _FORM.match(whole)
    if form is None:
        return None
    left, _, right = form["names"].partition(";")
    head, reduced = split(form["head"]), split(form["reduced"] or "")
    return Parts(
        tuple(split(left)), tuple(split(right)), tuple(head), form["reducer"] or "",
        tuple(reduced), form["body"], tuple(local),
    )  # fmt: skip


@dataclass
class _Scope:
    """The values of the names in one comprehension."""

    text: str
    tensors: dict[str, Tensor]
    numbers: dict[str, int]
    iterators: dict[str, Index]
    stars: dict[str, list[str]]
    local: dict[str, tuple[list[str], Read]]

    def wrong(self, what: str) -> RuleError:
        return wrong(self.text, what)


def wrong(text: str, what: str) -> RuleError:
    """Return the error that says why ``text`` isn't a comprehension."""
    return RuleError(
        f"a definition can't be read: {what}",
        got=text,
        expected="(a, b; p) [*i, j] = sum(k) a[*i, k] * b[k, j]",
        hint="see rules/README.md on definitions",
    )


def instantiate(
    text: str, tensors: Sequence[Tensor], numbers: Sequence[int], shape: Shape
) -> Scope:
    """Return the scope that ``text`` defines for these arguments and this result shape.

    Raises:
        RuleError: the text isn't a comprehension over these arguments.
    """
    parts = parts_of(text)
    if parts is None or parts.local:  # the axis order of a local tensor depends on the arguments
        return canonical(_written(text, tuple(tensors), tuple(numbers), shape))
    names = tuple(Input(f"#{n}", tensor.type) for n, tensor in enumerate(tensors))
    images = dict[Tensor, Tensor](zip(names, tensors, strict=True))
    written = over(_over_names(text, names, tuple(numbers), shape), images)
    assert isinstance(written, Scope)
    return canonical(written)


def _written(
    text: str, tensors: tuple[Tensor, ...], numbers: tuple[int, ...], shape: Shape
) -> Scope:
    """Return the scope as the text gives it, not in canonical form."""
    scope, parts = _Scope(text, {}, {}, {}, {}, {}), parts_of(text)
    if parts is None:
        raise wrong(text, "no (names) [head] = body")
    if len(parts.tensors) != len(tensors) or len(parts.numbers) != len(numbers):
        raise wrong(text, f"{len(tensors)} tensors and {len(numbers)} numbers are given")
    scope.tensors = dict(zip(parts.tensors, tensors, strict=True))
    scope.numbers = dict(zip(parts.numbers, numbers, strict=True))
    head = _head(scope, [*parts.head], len(shape))
    for slot, (name, extent) in enumerate(zip(head, shape, strict=True)):
        scope.iterators[name] = Index.iterator(slot, extent)
    for definition in parts.local:
        _define(scope, definition)
    body = READ.sub(lambda m: _expand(scope, m[1], m[2]), parts.body)
    reduced = [*parts.reduced]
    if len(reduced) == 1 and reduced[0].startswith("*"):
        reduced = scope.stars.get(reduced[0][1:], [])
    extents = [_extent(scope, name, body) for name in reduced]
    for j, (name, extent) in enumerate(zip(reduced, extents, strict=True)):
        scope.iterators[name] = Index.iterator(len(shape) + j, extent)
    value, reducer = _reduced(scope, parts.reducer, body, extents)
    return Scope(shape, tuple(extents), value, reducer)


# The definition over placeholder inputs `#0`, `#1`, …: parsed once for all tensors of equal types.
_over_names = lru_cache(maxsize=1 << 12)(_written)


def _reduced(scope: _Scope, reducer: str, body: str, extents: Sequence[int]) -> tuple[Scalar, str]:
    """Parse the right side; return its scalar, and the scope's reducer (``mean`` becomes sum)."""
    try:
        tree = ast.parse(" ".join(body.split()), mode="eval").body
    except SyntaxError as error:
        raise scope.wrong(str(error)) from error
    value = _scalar(scope, tree)
    if reducer == "mean":
        return product([Num(1 / max(math.prod(extents), 1)), value]), "sum"
    return value, reducer or "sum"


def _define(scope: _Scope, definition: str) -> None:
    """Add a local tensor of a ``where``: ``name[axes of the head] = right side``."""
    name, _, rest = definition.partition("[")
    form = _FORM.match("()[" + rest)
    if form is None or name in scope.tensors:
        raise scope.wrong(f"no name[axes] = right side of a new name: {definition}")
    axes, reduced = (
        [axis for item in split(part or "") for axis in scope.stars.get(item[1:], [item])]
        for part in (form["head"], form["reduced"])
    )
    its = {axis: it for axis, it in scope.iterators.items() if axis in {*axes, *reduced}}
    if set(its) != {*axes, *reduced} or len(its) != len(axes) + len(reduced):
        raise scope.wrong(f"{name} has axes that aren't those of the head")
    body = READ.sub(lambda m: _expand(scope, m[1], m[2]), form["body"])
    value, reducer = _reduced(scope, form["reducer"] or "", body, [_size(its[r]) for r in reduced])
    outside, gone = ({it for a in part for it in its[a].iterators()} for part in (axes, reduced))
    own = sorted(gone, key=lambda it: it.slot)
    scope.local[name] = axes, closed(value, outside, reducer, own)


def _size(iterator: Index) -> int:
    return iterator.range()[1] + 1


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _head(scope: _Scope, items: list[str], rank: int) -> list[str]:
    """Return the names of the result's axes, with ``*n`` expanded to ``n_0, n_1, …``."""
    fixed = sum(not item.startswith("*") for item in items)
    known = [item.partition(":") for item in items if item.startswith("*")]
    exact = {name[1:]: scope.numbers[count] for name, _, count in known if count}
    free = rank - fixed - sum(exact.values())
    if any(not 0 <= length <= rank for length in exact.values()):
        raise scope.wrong(f"a star of {exact} axes, the result has {rank}")
    result: list[str] = []
    for item in items:
        if not item.startswith("*"):
            result.append(item)
            continue
        name = item[1:].partition(":")[0]
        length = exact.get(name, free)
        scope.stars[name] = [f"{name}_{n}" for n in range(length)]
        result += scope.stars[name]
    if len(result) != rank:
        raise scope.wrong(f"the head has {len(result)} axes, the result {rank}")
    return result


def _expand(scope: _Scope, tensor: str, inside: str) -> str:
    """Expand the stars of one read: ``x[*n, i]`` -> ``x[n_0, n_1, i]``."""
    index, _, fill = inside.partition(" else ")
    items = split(index)
    shape = scope.tensors[tensor].shape if tensor in scope.tensors else ()
    result: list[str] = []
    for position, item in enumerate(items):
        if item.startswith("*"):
            result += scope.stars.setdefault(item[1:], _new_star(scope, item[1:], items, shape))
        elif item.startswith("^"):
            length = len(shape) - (len(items) - 1)
            axes = scope.stars[item[1:]][-length:] if length else []
            extents = shape[position : position + length]
            result += ["0" if e == 1 else axis for axis, e in zip(axes, extents, strict=True)]
        else:
            result.append(item)
    suffix = f", _fill({fill.strip()})" if fill else ""
    return f"{tensor}[{', '.join(result)}{suffix}]" if result or suffix else f"{tensor}[()]"


def _new_star(scope: _Scope, name: str, items: list[str], shape: Shape) -> list[str]:
    """Name the axes of a star that isn't in the head; these axes are reduced."""
    others = sum(len(scope.stars.get(i[1:], [i])) for i in items if i[1:] != name)
    return [f"{name}_{n}" for n in range(len(shape) - others)]


def _extent(scope: _Scope, name: str, body: str) -> int:
    """Return the extent of the axis that reduction iterator ``name`` indexes by itself."""
    for tensor, inside in READ.findall(body):
        items = [item for item in split(inside) if not item.startswith("_fill")]
        if tensor in scope.tensors and name in items:
            return scope.tensors[tensor].shape[items.index(name)]
    if name in scope.numbers:
        return scope.numbers[name]
    raise scope.wrong(f"no read is indexed by {name} alone, so its extent isn't known")


def index_of(text: str, iterators: Mapping[str, Index], numbers: Mapping[str, int]) -> Index:
    """Parse an index such as ``s*i + k`` over named iterators and integers.

    Raises:
        RuleError: the text isn't an index over these names.
    """
    scope = _Scope(text, {}, dict(numbers), dict(iterators), {}, {})
    try:
        return _index(scope, ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise scope.wrong(str(error)) from error


def _index(scope: _Scope, node: ast.expr) -> Index:
    match node:
        case ast.Constant(value=int() as value):
            return Index(value)
        case ast.Name(id=name) if name in scope.iterators:
            return scope.iterators[name]
        case ast.Name(id=name) if name in scope.numbers:
            return Index(scope.numbers[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_index(scope, operand)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _index(scope, left), _index(scope, right)
            if isinstance(op, ast.Add):
                return a + b
            if isinstance(op, ast.Sub):
                return a - b
            if isinstance(op, ast.Mult) and not (a.terms and b.terms):
                return b * a.const if not a.terms else a * b.const
            if isinstance(op, ast.FloorDiv | ast.Mod) and not b.terms:
                if b.const <= 0:
                    raise scope.wrong(f"the divisor {b.const} in {ast.unparse(node)}")
                return a // b.const if isinstance(op, ast.FloorDiv) else a % b.const
    raise scope.wrong(f"not an index: {ast.unparse(node)}")


def _scalar(scope: _Scope, node: ast.expr) -> Scalar:
    match node:
        case ast.Constant(value=int() | float() as value):
            return Num(value)
        case ast.Name(id=name) if name in scope.numbers:
            return Num(scope.numbers[name])
        case ast.Name(id=name) if name in scope.iterators:
            return Value(scope.iterators[name])
        case ast.Subscript(value=ast.Name(id=name), slice=inside) if name in scope.tensors:
            return _read(scope, name, inside)
        case ast.Subscript(value=ast.Name(id=name), slice=inside) if name in scope.local:
            return _read_local(scope, name, inside)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return product([Num(-1), _scalar(scope, operand)])
        case ast.Call(func=ast.Name(id=fn), args=args) if fn.rstrip("_") in FUNCTIONS:
            # `and_`, `or_` and `not_`: without the underscore they are keywords of Python.
            return Call(fn.rstrip("_"), tuple(_scalar(scope, arg) for arg in args))
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _scalar(scope, left), _scalar(scope, right)
            if isinstance(op, ast.Add):
                return total([a, b])
            if isinstance(op, ast.Sub):
                return total([a, product([Num(-1), b])])
            if isinstance(op, ast.Mult):
                return product([a, b])
            if isinstance(op, ast.Div):
                return Call("div", (a, b))
    raise scope.wrong(f"not a scalar: {ast.unparse(node)}")


def _read_local(scope: _Scope, name: str, inside: ast.expr) -> Read:
    axes, read = scope.local[name]
    items = list(inside.elts) if isinstance(inside, ast.Tuple) else [inside]
    if [ast.unparse(item) for item in items] != axes:
        raise scope.wrong(f"{name} is read at other axes than it is defined over")
    return read


def _read(scope: _Scope, name: str, inside: ast.expr) -> Read:
    items = list(inside.elts) if isinstance(inside, ast.Tuple) else [inside]
    fill = 0.0
    if items and isinstance(items[-1], ast.Call):
        # float() parses a number or ±inf; Python has no literal for infinity.
        fill = float(ast.unparse(items[-1].args[0]).replace(" ", ""))
        items = items[:-1]
    return Read(scope.tensors[name], tuple(_index(scope, item) for item in items), fill)
