"""Operators that rule files define by comprehensions, on tensors of symbolic extents.

    (define (Backward x (a i64)) "(x; a, n) [*p:a, i, *q] = x[*p, n - 1 - i, *q]" ...)
        Backward(x, 1) of x (m, n)   ->   shape (m, n), at(j, i) = x.at(j, n - 1 - i)

The text means what ``ir/notation.py`` says, with integers of Z3 in the place of numbers. A read is
guarded by the condition that it is inside of its tensor, unless it is at an iterator that runs over
just these places. ``tests/verify/test_comprehensions.py`` compares the elements with those that the
interpreter computes. Not here: operators that a term defines (``unfolding.py``).

:func:`along_an_axis` says which of these operators treat all axes but one alike. The argument about
ranks (``rewrites.py``) holds for them as it does for ``Slice``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import z3

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.notation import READ, Parts, parts_of, split
from eqsynth.rules.definitions import Case, Comprehension, Definition
from eqsynth.rules.tree import Tree, Var, is_call
from eqsynth.verify.facts import COMPARISONS, comparison
from eqsynth.verify.integers import Integers, number
from eqsynth.verify.symbolic import Extents, IllTyped, Require, Symbolic, computed, same
from eqsynth.verify.unfolding import Known
from eqsynth.verify.values import Call, Guard, Number, Reduce, Value, guarded
from eqsynth.verify.verdict import Left

Of = Callable[[Tree, Mapping[str, Any]], Any]
"""The value of an expression of a rule, given the values of its variables."""

_ARITHMETIC: Final = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
# Functions that choose elements, and compute none.
_CHOOSING: Final = frozenset({"where", "and"})
# The arithmetic of rules in which an extent may stand.
_OF_EXTENTS: Final = frozenset({"+", "-", "*", "/", "%", "min", "max", "abs"})


@dataclass(frozen=True)
class _Text:
    """A comprehension's text, read once: in ``body``, the name ``read n`` is the n-th read."""

    parts: Parts
    body: ast.expr
    reads: tuple[tuple[str, tuple[str, ...], float], ...]

    def length_of(self, star: str) -> str:
        """The number that is the length of a star of the head; empty if none is given."""
        heads = (item[1:].partition(":") for item in self.parts.head if item.startswith("*"))
        return next((count for name, _, count in heads if name == star), "")


@lru_cache(maxsize=256)
def _read_text(text: str) -> _Text | None:
    """The text of a comprehension; None for one with ``where``, or that broadcasts an axis."""
    parts = parts_of(text)
    if parts is None or parts.local or parts.reducer == "mean":
        return None
    reads: list[tuple[str, tuple[str, ...], float]] = []

    def kept(match: Any) -> str:
        inside, _, fill = match[2].partition(" else ")
        reads.append((match[1], tuple(split(inside)), float(fill or 0.0)))
        return f"_{len(reads) - 1}"

    body = ast.parse(" ".join(READ.sub(kept, parts.body).split()), mode="eval").body
    if any(item.startswith("^") for _, items, _ in reads for item in items):
        return None
    return _Text(parts, body, tuple(reads))


def case_of(definition: Definition) -> Case | None:
    """The one case of a definition whose comprehension is known here; None if there is none.

    A definition of several cases means the first whose facts hold, which isn't asked here.
    """
    if len(definition.cases) != 1 or len(definition.shapes) > 1:
        return None
    (case,) = definition.cases
    if not all(isinstance(argument, Var) for argument in case.arguments):
        return None
    known = isinstance(case.value, Comprehension) and _read_text(case.value.text) is not None
    return case if known else None


def _case(definition: Definition) -> Case:
    case = case_of(definition)
    assert case is not None
    return case


def _text_of(case: Case) -> _Text:
    assert isinstance(case.value, Comprehension)
    text = _read_text(case.value.text)
    assert text is not None
    return text


def computes(definition: Definition) -> bool:
    """Whether an element of the result is more than an element of an operand, or a number."""
    text = _text_of(_case(definition))
    for node in ast.walk(text.body):
        if isinstance(node, ast.Call):
            name = node.func.id.rstrip("_") if isinstance(node.func, ast.Name) else ""
            if name not in _CHOOSING:
                return True
        elif not isinstance(node, ast.Name | ast.Load):
            return True
    return bool(text.parts.reducer)


def rounds(definition: Definition) -> bool:
    """Whether the operator is a reduction whose result depends on the order of the operands."""
    return _text_of(_case(definition)).parts.reducer in ("sum", "prod")


# ---- roles of the attributes ---------------------------------------------------------------------


def kinds_of(definition: Definition) -> tuple[str, ...]:
    """The kind of each attribute: ``axis`` if it counts the axes before one that the text names,
    else ``number``, or the sort of an attribute that is no integer."""
    case = case_of(definition)
    axes = _axes(case) if case else {}
    return tuple(
        ("axis" if name in axes.values() else "number") if sort == "i64" else sort
        for name, sort in definition.attributes
    )


def _axes(case: Case) -> dict[str, str]:
    """The star of the head -> the attribute that is its length."""
    text, numbers = _text_of(case), _numbers(case)
    lengths = {item[1:].partition(":")[0]: item.partition(":")[2] for item in text.parts.head
               if item.startswith("*") and ":" in item}  # fmt: skip
    own = {star: numbers.get(count) for star, count in lengths.items()}
    return {star: tree.name for star, tree in own.items() if isinstance(tree, Var)}


def _numbers(case: Case) -> dict[str, Tree]:
    """The integers of the text, each as an expression over the operator's arguments."""
    assert isinstance(case.value, Comprehension)
    numbers = Known(case.facts).closed(case.value.numbers)
    trees = numbers[1:] if is_call(numbers) and numbers[0] in ("vec-of", "vec-empty") else ()
    return dict(zip(_text_of(case).parts.numbers, trees, strict=False))


def along_an_axis(definition: Definition) -> bool:
    """Whether the operator names one axis of its first operand, keeps the others, and depends on
    no other extent: ``[*p:a, i, *q] = x[*p, 2*i + k, *q]``.

    The element at (p, i, q) is then computed from elements at (p, .., q), and from i, the extent of
    the axis, and attributes. So the operator at a slice of an axis in p or q is the slice of the
    operator's result, and whether it is well-typed depends on the named axis alone.
    """
    case = case_of(definition)
    if case is None or any(sort == "Ints" for _, sort in definition.attributes):
        return False
    text, numbers, axes = _text_of(case), _numbers(case), _axes(case)
    head = text.parts.head
    if len(head) != 3 or not head[0].startswith("*") or not head[2].startswith("*"):
        return False
    before, middle, after = head[0][1:].partition(":")[0], head[1], head[2][1:]
    if before not in axes or not middle.isidentifier() or numbers.keys() != {*text.parts.numbers}:
        return False
    axis, inside = axes[before], (f"*{before}", f"*{after}")
    first = next(iter(case.arguments), None)
    for _, items, _ in text.reads:
        stars = [item for item in items if item.startswith("*")]
        if stars and (len(items) != 3 or (items[0], items[2]) != inside or len(stars) != 2):
            return False
    if any(name.startswith("*") for name in text.parts.reduced):
        return False
    known = Known(case.facts)
    counts = [tree for name, tree in numbers.items() if name != head[0].partition(":")[2]]
    facts = [known.closed(fact) for fact in case.facts]
    for shape in definition.shapes:
        if shape.arguments != case.arguments:
            return False
        own = Known(shape.facts)
        facts += [own.closed(fact) for fact in shape.facts]
        assert not isinstance(shape.value, Comprehension)
        match own.closed(shape.value):
            case ("vec-set", ("shape", x), at, extent) if (x, at) == (first, Var(axis)):
                counts.append(extent)
            case ("shape", x) if x == first:
                pass
            case _:
                return False
    for tensor in _tensors(case):
        match tensor:
            case ("Full", ("vec-of", *extents), *_):
                counts += extents
            case Var() | ("Full", ("vec-empty",), *_):
                pass
            case ("Full", ("shape", x), *_) if x == first:
                pass
            case _:
                return False
    counts += [side for fact in facts if fact[0] in COMPARISONS for side in fact[1:]]
    said = all(
        fact[0] in COMPARISONS or (fact[0] == "=" and fact[1] == fact[2]) for fact in facts
    )
    extent = ("vec-get", ("shape", first), Var(axis))
    return said and all(_by_axis(count, extent, axis) for count in counts)


def _tensors(case: Case) -> tuple[Tree, ...]:
    """The tensors of the text, each as a term over the operator's arguments."""
    assert isinstance(case.value, Comprehension)
    tensors: tuple[Tree, ...] = tuple(Known(case.facts).closed(case.value.tensors))
    return tensors[1:]


def _by_axis(tree: Tree, extent: Tree, axis: str) -> bool:
    """Whether an integer is computed from attributes, without the axis's number, and from the
    extent of the axis."""
    if tree == extent or isinstance(tree, int):
        return True
    if isinstance(tree, Var):
        return bool(tree.name != axis)
    return is_call(tree) and tree[0] in _OF_EXTENTS and all(
        _by_axis(part, extent, axis) for part in tree[1:]
    )  # fmt: skip


# ---- the result ----------------------------------------------------------------------------------


def applied(
    definition: Definition, args: Sequence[Any], of: Of, ints: Integers, require: Require
) -> Symbolic:
    """The result of a defined operator.

    Args:
        args: tensors, then attributes; an attribute that is no integer may be a name.

    Raises:
        IllTyped: the ranks don't fit.
        Left: the definition isn't one that is known here.
    """
    case = case_of(definition)
    if case is None:
        raise Left(f"the operator {definition.name}")
    given = _Given(definition, of, ints, require)
    bound = given.bound(case, args)
    assert isinstance(case.value, Comprehension)
    if not all(isinstance(tree, Var) or _is_constant(tree) for tree in _tensors(case)):
        raise Left(f"a tensor of which {definition.name} is made")
    tensors = of(case.value.tensors, bound)
    numbers = given.integers(case.value.numbers, bound)
    text = _text_of(case)
    names = _Names(text, dict(zip(text.parts.tensors, tensors, strict=True)),
                   dict(zip(text.parts.numbers, numbers, strict=True)), ints, require)  # fmt: skip
    shape = None
    for analysis in definition.shapes:
        assert not isinstance(analysis.value, Comprehension)
        shape = given.integers(analysis.value, given.bound(analysis, args))
        require(z3.And(*(number(extent) >= 0 for extent in shape), True))
    return names.result(shape)


def _is_constant(tree: Tree) -> bool:
    """Whether a tensor is full of a number that each dtype has, or that is converted as any number
    of the operand's dtype is."""
    match tree:
        case ("Full", _, value, dtype):
            own = is_call(dtype) and dtype[0] == "dtype"
            return own or (dtype == "bool" and value in (0.0, 1.0))
    return False


@dataclass(frozen=True)
class _Given:
    """The conditions of a definition's cases: supposed of a term that is matched, and to be shown
    of one that is made."""

    definition: Definition
    of: Of
    ints: Integers
    require: Require

    def bound(self, case: Case, args: Sequence[Any]) -> dict[str, Any]:
        """The variables of a case, if its facts hold."""
        found = {
            argument.name: value
            for argument, value in zip(case.arguments, args, strict=True)
            if isinstance(argument, Var)
        }
        waiting = list(case.facts)
        while waiting:
            later = []
            for fact in waiting:
                try:
                    self._suppose(fact, found)
                except KeyError:
                    later.append(fact)
            if len(later) == len(waiting):
                raise Left(f"a condition of {self.definition.name}")
            waiting = later
        return found

    def _suppose(self, fact: Tree, bound: dict[str, Any]) -> None:
        if fact[0] == "=":
            for one, two in (fact[1:], fact[:0:-1]):
                if isinstance(one, Var) and one.name not in bound:
                    bound[one.name] = self._value(two, bound)
                    return
            a, b = (self._value(side, bound) for side in fact[1:])
            if not all(_is_integer(side) for side in (a, b)):
                raise Left(f"a condition of {self.definition.name}")
            self.require(number(a) == b)
            return
        if fact[0] not in COMPARISONS or not all(
            _is_integer(self._value(side, bound)) for side in fact[1:]
        ):
            raise Left(f"a condition of {self.definition.name}")
        self.require(comparison(fact, self.ints, lambda tree: self.of(tree, bound)))

    def _value(self, tree: Tree, bound: Mapping[str, Any]) -> Any:
        self._divides(tree, bound)
        return self.of(tree, bound)

    def _divides(self, tree: Tree, bound: Mapping[str, Any]) -> None:
        """Require that no divisor in an expression is 0: it has no value then."""
        if not is_call(tree):
            return
        for part in tree[1:]:
            self._divides(part, bound)
        if tree[0] in ("/", "%"):
            self.require(number(self.of(tree[2], bound)) != 0)

    def integers(self, tree: Tree, bound: Mapping[str, Any]) -> Extents:
        found = self._value(tree, bound)
        if not (isinstance(found, tuple) and all(_is_integer(part) for part in found)):
            raise Left(f"the integers of {self.definition.name}")
        return found


def _is_integer(x: Any) -> bool:
    return (isinstance(x, int) and not isinstance(x, bool)) or z3.is_expr(x)


@dataclass
class _Names:
    """A comprehension with the values of its names.

    Attributes:
        lengths: star -> the number of its axes.
        extents: iterator -> its extent; a star's iterators are pairs (star, place).
    """

    text: _Text
    tensors: Mapping[str, Symbolic]
    numbers: Mapping[str, Any]
    ints: Integers
    require: Require
    lengths: dict[str, int] = field(default_factory=dict)
    extents: dict[Any, Any] = field(default_factory=dict)

    def result(self, shape: Extents | None) -> Symbolic:
        """The tensor that the comprehension is.

        Args:
            shape: its shape; None if the extents are those of the axes that are read by name.
        """
        self._measure(shape)
        head = [name for item in self.text.parts.head for name in self._named(item)]
        if shape is None:
            self._infer()
            shape = tuple(self._extent(name) for name in head)
        if len(shape) != len(head):
            raise IllTyped
        self.extents |= dict(zip(head, shape, strict=True))
        reduced = self.text.parts.reduced
        for name in reduced:
            self.extents[name] = self._reduced_over(name)
        if self.text.parts.reducer in ("max", "min") and not all(
            self.ints.holds(number(self.extents[name]) >= 1) for name in reduced
        ):
            raise Left("that a maximum is taken of at least one element")
        for _, items, _ in self.text.reads:
            for item in items:
                self._divide(item)

        def at(index: Extents) -> Value:
            places = dict(zip(head, index, strict=True))
            names = {name: z3.FreshInt("k") for name in reduced}
            body = self._value(self.text.body, {**places, **names})
            if not self.text.parts.reducer:
                return body
            bound = tuple((names[name], self.extents[name]) for name in reduced)
            return Reduce(self.text.parts.reducer, bound, body)

        return computed(shape, at)

    # ---- axes ---------------------------------------------------------------------------

    def _measure(self, shape: Extents | None) -> None:
        """Find the lengths of the stars."""
        stars = [item[1:].partition(":")[0] for item in self.text.parts.head if item[0] == "*"]
        for star in stars:
            count = self.text.length_of(star)
            if count:
                length = self.numbers[count]
                if not isinstance(length, int):
                    raise Left("what is true at an axis that is computed")
                self.lengths[star] = length
        if shape is not None:
            named = sum(item[0] != "*" for item in self.text.parts.head)
            free = [star for star in stars if star not in self.lengths]
            if len(free) == 1:
                self.lengths[free[0]] = len(shape) - named - sum(self.lengths.values())
        for _ in self.text.reads:
            for tensor, items, _ in self.text.reads:
                unknown = [item for item in items if item[0] == "*" and item[1:] not in (
                    self.lengths)]  # fmt: skip
                if len(unknown) == 1:
                    rest = sum(self.lengths.get(item[1:], 0) if item[0] == "*" else 1
                               for item in items)  # fmt: skip
                    self.lengths[unknown[0][1:]] = self.tensors[tensor].rank - rest
        used = {item[1:] for _, items, _ in self.text.reads for item in items if item[0] == "*"}
        if not used <= {*stars} or not {*stars} <= self.lengths.keys():
            raise Left("axes that the head doesn't name")
        if min(self.lengths.values(), default=0) < 0:
            raise IllTyped
        for tensor, items, _ in self.text.reads:
            if sum(len(self._named(item)) for item in items) != self.tensors[tensor].rank:
                raise IllTyped

    def _named(self, item: str) -> list[Any]:
        """The iterators of an item of the head, or of a read."""
        if item[0] != "*":
            return [item]
        star = item[1:].partition(":")[0]
        return [(star, place) for place in range(self.lengths[star])]

    def _places(self, tensor: str, items: Sequence[str]) -> Iterator[tuple[Any, Any]]:
        """The iterator, or the text of the index, and the extent, of each axis that is read."""
        names = [name for item in items for name in self._named(item)]
        yield from zip(names, self.tensors[tensor].extents, strict=True)

    def _infer(self) -> None:
        """Take the extents of the axes that are read by name, of which all must be equal."""
        for tensor, items, _ in self.text.reads:
            for name, extent in self._places(tensor, items):
                known = self.extents.setdefault(name, extent)
                if not same(known, extent):
                    self.require(number(known) == extent)

    def _extent(self, name: Any) -> Any:
        if name not in self.extents and name not in self.numbers:
            raise Left(f"the extent of {name}")
        if name not in self.extents:
            self.require(number(self.numbers[name]) >= 0)
        return self.extents[name] if name in self.extents else self.numbers[name]

    def _reduced_over(self, name: str) -> Any:
        for tensor, items, _ in self.text.reads:
            for own, extent in self._places(tensor, items):
                if own == name:
                    return extent
        if name not in self.numbers:
            raise Left(f"the extent of {name}")
        self.require(number(self.numbers[name]) >= 0)
        return self.numbers[name]

    # ---- elements -----------------------------------------------------------------------

    def _divide(self, item: str) -> None:
        """Require that divisors in an index are positive: others have no value."""
        if item[0] == "*":
            return
        for node in ast.walk(ast.parse(item, mode="eval")):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
                self.require(number(self._index(node.right, {})) >= 1)

    def _index(self, node: ast.expr, places: Mapping[Any, Any]) -> Any:
        match node:
            case ast.Constant(value=int() as value):
                return value
            case ast.Name(id=name) if name in places:
                return places[name]
            case ast.Name(id=name) if name in self.numbers:
                return self.numbers[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -number(self._index(operand, places))
            case ast.BinOp(left=left, op=op, right=right):
                a, b = (number(self._index(side, places)) for side in (left, right))
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.FloorDiv():
                        # Z3's own quotient: iterators in it are substituted with the index.
                        return a / b
                    case ast.Mod():
                        return a % b
        raise Left(f"the index {ast.unparse(node)}")

    def _read(self, tensor: str, items: Sequence[str], fill: float, places: Any) -> Value:
        index, inside = [], []
        for name, extent in self._places(tensor, items):
            place = places[name] if name in places else self._index(
                ast.parse(name, mode="eval").body, places)  # fmt: skip
            index.append(place)
            if name not in places or not same(self.extents[name], extent):
                inside += [number(place) >= 0, number(place) < extent]
        element = self.tensors[tensor].at(tuple(index))
        return guarded(z3.And(*inside), element, Number(fill)) if inside else element

    def _value(self, node: ast.expr, places: Mapping[Any, Any]) -> Value:
        match node:
            case ast.Name(id=name) if name[1:].isdigit() and name[0] == "_":
                return self._read(*self.text.reads[int(name[1:])], places)
            case ast.Constant(value=int() | float() as value):
                return Number(float(value))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Call("neg", (self._value(operand, places),))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                sides = (self._value(left, places), self._value(right, places))
                return Call(_ARITHMETIC[type(op)], sides)
            case ast.Call(func=ast.Name(id=name), args=args) if name.rstrip("_") in FUNCTIONS:
                values = tuple(self._value(arg, places) for arg in args)
                return _chosen(*values) if name == "where" else Call(name.rstrip("_"), values)
        raise Left(f"the element {ast.unparse(node)}")


def _chosen(condition: Value, yes: Value, no: Value) -> Value:
    """The element of ``where``: where places alone decide, a guard."""
    match condition:
        case Number(value=1.0):
            return yes
        case Number(value=0.0):
            return no
        case Guard():
            return Guard(condition.condition, _chosen(condition.inside, yes, no),
                         _chosen(condition.outside, yes, no))  # fmt: skip
        case Call(name="and", args=(one, two)):
            return _chosen(one, _chosen(two, yes, no), no)
    return Call("where", (condition, yes, no))
