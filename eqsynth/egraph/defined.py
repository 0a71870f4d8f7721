"""Operators that rule files define: the rows that the table of operators has for built-in ones.

A definition ``(define (Square x) (Mul x x))`` gives the operator its type and its value: written
out for the arguments, it is a term of operators and scopes, which have a type and a value. Not
here: parsing of definitions (``rules/definitions.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from eqsynth.calculus.define import Comprehension as Defining
from eqsynth.egraph.defined_shape import shape_of
from eqsynth.egraph.encode import decode_tensor
from eqsynth.errors import EqsynthError, ShapeError, UnsupportedOperatorError
from eqsynth.ir.notation import instantiate
from eqsynth.ir.operators import Attr, AttrKind, Operator
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import Input, Op, Tensor
from eqsynth.ir.types import Shape, TensorType
from eqsynth.rules.definitions import Case, Comprehension, Definition, how_to_define
from eqsynth.rules.tree import Tree, Var
from eqsynth.rules.values import Unknown, evaluate

_KINDS: Final[Mapping[str, AttrKind]] = {
    "i64": "int", "f64": "float", "String": "str", "Ints": "ints",
}  # fmt: skip
# Errors of a computation that has no value; a fact that contains such a computation doesn't hold.
_NO_VALUE: Final = (Unknown, ArithmeticError, IndexError, TypeError, ValueError)


def operators_of(definitions: Mapping[str, Definition]) -> dict[str, Operator]:
    """Return the rows of operators by name. An operator without a definition has no type or value.

    Args:
        definitions: the definitions of a `RuleSet`, in the order of their declarations.
    """
    rows: dict[str, Operator] = {}
    for name, definition in definitions.items():
        used = definition.heads & rows.keys()
        rows[name] = _row(definition, tuple(rows[head] for head in sorted(used)))
    return rows


def _row(definition: Definition, uses: tuple[Operator, ...]) -> Operator:
    meaning = Meaning(definition, uses)
    return Operator(
        definition.name,
        definition.arity,
        TypeOf(meaning),
        tuple((name, _KINDS[sort]) for name, sort in definition.attributes),
        kind="defined",
        expand=Expand(meaning),
        digest=meaning.digest,
    )


@dataclass(frozen=True, eq=False)
class Meaning:
    """A definition, with the rows of the rule files' operators that its right side uses."""

    definition: Definition
    uses: tuple[Operator, ...]
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        d = self.definition
        said = (d.name, d.sorts, repr(d.cases), repr(d.shapes), *(row.digest for row in self.uses))
        object.__setattr__(self, "digest", digest_of("defined", *said))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Meaning) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def type_of(self, types: Sequence[TensorType], *attrs: Attr) -> TensorType:
        """Return the type of the result, from the types of the arguments.

        Raises:
            ShapeError, DtypeError: no case of the definition fits the arguments, or they don't fit
                together.
        """
        return _type_of(self, tuple(types), attrs)

    def expand(self, args: Sequence[Tensor], attrs: Sequence[Attr]) -> Tensor:
        """Return the right side of the definition for these arguments.

        Raises:
            ShapeError, DtypeError: no case of the definition fits the arguments, or they don't fit
                together.
            UnsupportedOperatorError: there is no definition.
        """
        if not self.definition.cases:
            raise UnsupportedOperatorError(
                what=f"{self.definition.name} has no definition",
                where=f"{self.definition.file}:{self.definition.line}",
                expected="a rule of the status definition, or an operator of the table",
                hint=how_to_define(self.definition),
            )
        values: tuple[Any, ...] = (*args, *attrs)
        if self.definition.arity is None:
            values = (tuple(args), *attrs)
        for case in self.definition.cases:
            bound = _bound(case, values)
            if bound is not None:
                return self._written(case, bound, values)
        raise self._refused("no definition of it is for such arguments", values)

    def _written(self, case: Case, bound: Mapping[str, Any], values: Sequence[Any]) -> Tensor:
        value = case.value
        try:
            if not isinstance(value, Comprehension):
                made = evaluate(value, bound, self._build)
                if not isinstance(made, Tensor):
                    raise Unknown
                return made
            tensors = evaluate(value.tensors, bound, self._build)
            numbers = evaluate(value.numbers, bound)
        except _NO_VALUE as error:
            if isinstance(error, EqsynthError):
                raise
            raise self._refused(f"{case.rule} gives it no value", values) from None
        shape = self._shape(values)
        if shape is None:
            shape = shape_of(value.text, tensors, numbers)
        return instantiate(value.text, tensors, numbers, shape)

    def _build(self, name: str, args: Sequence[Any]) -> Tensor:
        return decode_tensor(name, args, {row.name: row for row in self.uses})

    def _shape(self, values: Sequence[Any]) -> Shape | None:
        """Return the shape that a shape analysis of the rule file gives; None without one."""
        for case in self.definition.shapes:
            bound = _bound(case, values)
            if bound is None:
                continue
            try:
                shape: Shape = tuple(evaluate(case.value, bound))
            except _NO_VALUE:
                continue
            if all(isinstance(extent, int) and extent >= 0 for extent in shape):
                return shape
        if self.definition.shapes:
            raise self._refused("no rule tells its shape for such arguments", values)
        return None

    def _refused(self, what: str, values: Sequence[Any]) -> ShapeError:
        d = self.definition
        shown = [str(v.type) if isinstance(v, Tensor) else str(v) for v in values]
        return ShapeError(
            f"{d.name}: {what}",
            where=f"{d.file}:{d.line}",
            got=", ".join(shown),
            expected=", ".join(case.rule for case in (*d.cases, *d.shapes)),
            hint="See what the facts of these rules say, and for which arguments they hold.",
        )


# Dataclasses instead of closures, so that rows of equal definitions are equal and can be cached.


@dataclass(frozen=True)
class TypeOf:
    """The ``Operator.infer_type`` of a defined operator."""

    meaning: Meaning

    def __call__(self, types: Sequence[TensorType], *attrs: Attr) -> TensorType:
        return self.meaning.type_of(types, *attrs)


@dataclass(frozen=True)
class Expand:
    """The ``Operator.expand`` of a defined operator."""

    meaning: Meaning

    def __call__(self, args: Sequence[Tensor], attrs: Sequence[Attr]) -> Tensor:
        return self.meaning.expand(args, attrs)


@lru_cache(maxsize=1 << 12)
def _type_of(
    meaning: Meaning, types: tuple[TensorType, ...], attrs: tuple[Attr, ...]
) -> TensorType:
    args = [Input(f"a{number}", kind) for number, kind in enumerate(types)]
    return meaning.expand(args, attrs).type


def comprehension(op: Op, meanings: Mapping[str, tuple[Case, ...]]) -> Defining | None:
    """Return the comprehension that defines a built-in operator, with the operator's arguments;
    None if no comprehension defines it.

    Args:
        meanings: operator -> the cases of its definition, of a `RuleSet`.
    """
    values = (*op.args, *op.attrs)
    for case in meanings.get(op.name, ()):
        if len(case.arguments) != len(values) or not isinstance(case.value, Comprehension):
            continue
        bound = _bound(case, values, {case.root: op})
        if bound is not None:
            try:
                tensors = tuple(evaluate(case.value.tensors, bound))
                numbers = tuple(evaluate(case.value.numbers, bound))
            except Unknown:
                return None  # the comprehension reads tensors computed from the arguments
            return Defining(case.value.text, tensors, numbers)
    return None


def _bound(
    case: Case, values: Sequence[Any], known: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any] | None:
    """Return the values of a case's variables; None if the case doesn't fit the arguments."""
    bound = dict(known)
    for part, value in zip(case.arguments, values, strict=True):
        if isinstance(part, Var):
            bound[part.name] = value
        elif part != value:
            return None
    waiting = list(case.facts)
    while waiting:
        later = []
        for fact in waiting:
            try:
                if not _holds(fact, bound):
                    return None
            except Unknown:
                later.append(fact)
            except _NO_VALUE:
                return None
        if len(later) == len(waiting):
            return None
        waiting = later
    return bound


def _holds(fact: Tree, bound: dict[str, Any]) -> bool:
    """Whether a fact holds. A fact ``(= v expression)`` for a new variable v binds v."""
    if fact[0] == "=":
        for side, other in (fact[1:], fact[:0:-1]):
            if isinstance(side, Var) and side.name not in bound:
                bound[side.name] = evaluate(other, bound)
                return True
    return bool(evaluate(fact, bound))
