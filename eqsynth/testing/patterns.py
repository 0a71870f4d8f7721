"""Random terms on which a rule may match, built from the rule's own pattern.

    (Relu (Add x y))   ->   Relu(Add(x_2x3, y_2x3))

The variables of the pattern become inputs, attributes, scalars and indices of fitting types. A
condition that determines a variable (``(= n (rank x))``) is followed; other conditions may fail,
and the e-graph decides whether the rule matches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from eqsynth.errors import EqsynthError
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.scalar import Scalar, rewrite_leaves
from eqsynth.ir.tensor import Input, Op, Scope, Tensor, Weight, topological
from eqsynth.ir.types import TensorType, is_float
from eqsynth.rules import Tree, Var, render
from eqsynth.rules.definitions import Comprehension
from eqsynth.rules.tree import variables
from eqsynth.rules.values import Unknown, evaluate
from eqsynth.testing.algebra_samples import product_of_type
from eqsynth.testing.boundaries import at_a_boundary
from eqsynth.testing.choices import Choices, Rejected, chance
from eqsynth.testing.defined_fits import fit_comprehension
from eqsynth.testing.expansion_samples import places_of_type
from eqsynth.testing.fitting import along_vector, as_built, fit
from eqsynth.testing.raw_indices import DIVISORS, NUMBERS, any_raw_index, read_back
from eqsynth.testing.scope_samples import MAX_POINTS, leaf
from eqsynth.testing.templates import SLOTS, Sample, Template
from eqsynth.testing.world import MAX_ELEMENTS, World, world_of_rule

# Extents of iterators that are drawn in place of those in SLOTS.
_SLOTS: Final = (5, 7, 2, 1, 9, 13)
_REALS: Final = (0.0, 1.0, 2.0, -1.0, 0.5)
_NUMBER_ROLES: Final = {"IDiv": "divisor", "IMod": "divisor"}


def sample_of(template: Template, choices: Choices) -> Sample:
    """Build a sample on which the rule may match.

    Raises:
        Rejected: the decisions lead to terms that don't fit together.
    """
    try:
        return _Builder(template, choices).build()
    except (EqsynthError, ZeroDivisionError, OverflowError) as error:
        raise Rejected(str(error)) from None


class _Builder:
    """Builds one sample.

    Attributes:
        bound: variable of the rule -> its value, as far as it is built.
        slots: the extents of the iterators of the body that is being built.
        loose: the extents of the iterators of scalars and indices outside of scopes.
        result: the sample.
    """

    # Part of the names of a sibling's leaves, so that siblings have different leaves.
    suffix = ""

    def __init__(self, template: Template, choices: Choices, world: World | None = None) -> None:
        self.template = template
        self.choices = choices
        scopes = template.has_scopes
        self.world = world or world_of_rule(choices, template.literals, scopes)
        self.slots = self.loose = self._slots()
        self.bound: dict[str, Any] = {}
        self.result = Sample(slots=self.slots)

    def build(self) -> Sample:
        roots = list(self.template.definitions) or [
            name for name, sort in self.template.sorts.items() if sort in ("Idx", "Scalar")
        ][:1]  # fmt: skip
        used = set()
        for tree in self.template.definitions.values():
            used |= set(variables(tree))
        # A pattern that is part of another one is built with that one.
        for name in [n for n in roots if n not in used] or roots:
            self._root(name)
        if self.template.compared and chance(self.choices, 3):
            bound = at_a_boundary(self.template, self.choices, self.bound)
            moved = {t: bound[n] for n, t in self.bound.items() if isinstance(t, Tensor)}
            if all(term.type.size <= MAX_ELEMENTS for term in moved.values()):
                self.result.tensors = [moved.get(term, term) for term in self.result.tensors]
                self.bound = bound
        self._count_conditions()
        if not self.result.tensors and not self.result.raw:
            raise Rejected("the rule has no pattern")
        return self.result

    def _root(self, name: str) -> None:
        sort = self.template.sorts.get(name, "")
        if sort == "Tensor":
            self.result.tensors.append(self._tensor(Var(name), None))
            if self.template.rule.kind == "law-request":
                self._siblings(name)
        elif sort in ("Scalar", "Idx"):
            build = self._scalar if sort == "Scalar" else self._index
            self.result.raw.append((sort, build(Var(name), 2)))

    def _siblings(self, name: str) -> None:
        """Add terms of the same operator with the same first operand, since some laws join such
        siblings (``a @ b`` and ``a @ c``)."""
        definition, term = self.template.definitions[name], self.bound[name]
        if not isinstance(term, Op) or len(term.args) != 2 or not isinstance(definition, tuple):
            return
        own = dict(self.bound)
        for number in range(self.choices.pick((0, 1, 2))):
            second = definition[2].name if isinstance(definition[2], Var) else ""
            self.bound = {n: v for n, v in own.items() if n not in (name, second)}
            self.suffix = str(number)
            try:
                self.result.tensors.append(self._operator(definition, None))
            except (EqsynthError, Rejected):
                continue
        self.bound, self.suffix = own, ""

    def _count_conditions(self) -> None:
        """Count which of the rule's conditions hold on this sample, where they can be evaluated."""
        for fact in self.template.rule.body:
            try:
                holds = evaluate(fact, self.bound)
            except (Unknown, ArithmeticError, IndexError):
                continue
            text = render(fact)
            self.template.asked[text] += 1
            self.template.true[text] += bool(holds)

    def _slots(self) -> tuple[int, ...]:
        """Extents of iterators for scalars and indices outside of scopes; some are numbers that
        the rule names."""
        others = (*self.template.literals.extents, *_SLOTS)
        return tuple(
            self.choices.pick(others) if chance(self.choices, 3) else extent for extent in SLOTS
        )

    # ---- variables ----------------------------------------------------------

    def _bind(self, tree: Tree, value: Any) -> Any:
        if isinstance(tree, Var) and tree.name:
            self.bound.setdefault(tree.name, value)
        return value

    def _hinted(self, tree: Tree) -> Any:
        """The value that the rule's facts give to a variable, or None. It is ignored in one of
        eight cases, so that the fact fails sometimes."""
        if not isinstance(tree, Var):
            return None
        for hint in self.template.hints.get(tree.name, ()):
            try:
                found = evaluate(hint, self.bound)
            except (Unknown, ArithmeticError, IndexError):
                continue
            if not chance(self.choices, 8):
                return found
        return None

    def _attribute(self, tree: Tree) -> Any:
        """The value of an attribute if it is known already, else None."""
        if isinstance(tree, Var):
            return self.bound.get(tree.name, self._hinted(tree))
        try:
            return evaluate(tree, self.bound)
        except Unknown:
            return None

    # ---- tensors ------------------------------------------------------------

    def _tensor(self, tree: Tree, want: TensorType | None) -> Tensor:
        if isinstance(tree, Var):
            if tree.name in self.bound:
                return self.bound[tree.name]  # type: ignore[no-any-return]
            if tree.name in self.template.definitions:
                built = self._tensor(self.template.definitions[tree.name], want)
            else:
                built = self._leaf(tree.name, self._as_said(tree.name, want or self.world.type()))
            return self._bind(tree, built)  # type: ignore[no-any-return]
        if tree[0] == "Scope":
            return self._scope(tree)
        if tree[0] in ("Input", "Weight"):
            return leaf(self.world, (want or self.world.type()).shape, "w" * (tree[0] == "Weight"))
        return self._operator(tree, want)

    def _as_said(self, name: str, kind: TensorType) -> TensorType:
        """The type ``kind``, with the shape and dtype that the rule's facts give a variable."""
        found: dict[str, Any] = {"shape": kind.shape, "dtype": kind.dtype}
        for what in found:
            for tree in self.template.types.get((what, name), ()):
                try:
                    said = evaluate(tree, self.bound)
                except (Unknown, ArithmeticError, IndexError):
                    continue
                if not chance(self.choices, 8):
                    found[what] = said
        return TensorType(found["shape"], found["dtype"])

    def _leaf(self, name: str, kind: TensorType) -> Tensor:
        if kind.size > MAX_ELEMENTS:
            raise Rejected("too large")
        same = [v for v in self.bound.values() if isinstance(v, Tensor) and v.type == kind]
        if same and chance(self.choices, 8):
            return same[0]
        text = f"{name or 'x'}{self.suffix}_{'x'.join(map(str, kind.shape))}"
        if kind.dtype != "float32":
            text += f"_{kind.dtype}"
        # A law may look at the terms that its operator reads, so leaves may be products.
        of_law = self.template.rule.kind == "law-request"
        if of_law and is_float(kind.dtype) and chance(self.choices, 4):
            return product_of_type(self.world, kind)
        if of_law and kind.dtype == "int64" and chance(self.choices, 4):
            return places_of_type(self.world, kind)
        constant = name in self.template.constants or chance(self.choices, 5)
        return (Weight if constant else Input)(f"w_{text}" if constant else text, kind)

    def _operator(self, tree: Tree, want: TensorType | None) -> Tensor:
        name = tree[0]
        row = self.template.row(name)
        if row.arity is None:
            parts, rest = self._members(tree[1], 3), tree[2:]
        else:
            parts, rest = list(tree[1 : 1 + row.arity]), tree[1 + row.arity :]
        known: list[Tensor | None] = [self._known_tensor(part) for part in parts]
        attrs = [self._attribute(part) for part in rest]
        attrs = [self._along_vector(part, own) if value is None else value
                 for value, part, (own, _) in zip(attrs, rest, row.attrs, strict=True)]  # fmt: skip
        given = [None if t is None else t.type for t in known]
        if row.expand is not None:
            attrs = [self._of_length(part) if a is None else a
                     for a, part in zip(attrs, rest, strict=True)]  # fmt: skip
            given, attrs = self._along_definition(name, want, given, attrs)
        types, fitted = fit(row, self.world, want, given, attrs)
        # Attributes are bound before the arguments are built, which may have the same attributes.
        for part, value in zip(rest, fitted, strict=True):
            self._bind_attribute(part, value)
        args: tuple[Tensor, ...] = ()
        for t, part, kind in zip(known, parts, types, strict=True):
            args += (self._tensor(part, as_built(kind, types, args)) if t is None else t,)
        if row.arity is None:
            self._bind(tree[1], args)
        built = Op(name, args, tuple(fitted), "", self.template.defined.get(name))
        if built.type.size > MAX_ELEMENTS:
            raise Rejected("too large")
        return built

    def _along_vector(self, tree: Tree, attribute: str) -> Any:
        """Integers for an attribute that is a pattern such as `(vec-of k 1)`; None if ``fit`` may
        draw the attribute."""
        if not isinstance(tree, tuple) or tree[0] != "vec-of":
            return None
        known = [self._attribute(part) for part in tree[1:]]
        return along_vector(self.world, known, tree[1:], attribute)

    def _of_length(self, tree: Tree) -> Any:
        """Integers for a vector whose length the rule's facts give; None if they don't."""
        if not isinstance(tree, Var) or tree.name not in self.template.lengths:
            return None
        return tuple(self.world.number((1, 2, 0)) for _ in range(self.template.lengths[tree.name]))

    def _along_definition(
        self, name: str, want: TensorType | None, types: list[TensorType | None], attrs: list[Any]
    ) -> tuple[list[TensorType | None], list[Any]]:
        """Types and attributes of an operator that a rule file defines, as far as its definition
        determines them."""
        template = self.template
        definition = template.rules.definitions[name]
        if definition.arity is None:
            return types, attrs
        case = self.choices.pick(definition.cases)
        if isinstance(case.value, Comprehension):
            return fit_comprehension(case, self.world, want, types, attrs)
        inner = _Builder(template.of(case.rule), self.choices, self.world)
        for part, kind, attr in zip(
            case.arguments, [*types, *(None for _ in attrs)], [*types, *attrs], strict=True
        ):
            if isinstance(part, Var) and attr is not None:
                leaf = None if kind is None else Input(f"{part.name}{len(inner.bound)}", kind)
                inner.bound[part.name] = attr if leaf is None else leaf
        inner._tensor(case.value, want)
        found = [
            inner.bound.get(part.name) if isinstance(part, Var) else part
            for part in case.arguments
        ]  # fmt: skip
        drawn = [t.type if isinstance(t, Tensor) else None for t in found[: len(types)]]
        return drawn, found[len(types) :]

    def _bind_attribute(self, tree: Tree, value: Any) -> None:
        self._bind(tree, value)
        if isinstance(tree, tuple) and tree[0] == "vec-of" and len(tree) - 1 == len(value):
            for part, element in zip(tree[1:], value, strict=True):
                self._bind(part, element)

    def _known_tensor(self, tree: Tree) -> Tensor | None:
        return self.bound.get(tree.name) if isinstance(tree, Var) else None

    def _members(self, tree: Tree, most: int) -> list[Tree]:
        """The patterns of a vector's elements. If the vector is a variable, a length is drawn, and
        the elements are new variables.

        Args:
            most: the largest length that is drawn usually.
        """
        if isinstance(tree, tuple) and tree[0] == "vec-of":
            return list(tree[1:])
        if isinstance(tree, Var) and tree.name in self.bound:
            raise Rejected("a vector that is bound already")
        name = tree.name if isinstance(tree, Var) else ""
        given = self.template.elements.get(name, {})
        length = self.template.lengths.get(name)
        if length is None:
            least = max(given, default=0) + 1
            length = self.choices.pick(range(least, max(least, most) + 1))
            if most > 1 and chance(self.choices, 4):
                # Sometimes more elements than the rule names.
                length += self.choices.pick((1, 2))
        return [given.get(n, Var(f"{name or 'v'}{n}")) for n in range(length)]

    def _scope(self, tree: Tree) -> Tensor:
        """A scope built from the pattern, or drawn from one of the families of scopes."""
        _, traversal, reduction, reducer, body = tree
        pattern = isinstance(body, tuple) or (
            isinstance(body, Var) and body.name in self.template.definitions
        )
        scope: Tensor
        if pattern and not self.template.own_families and not chance(self.choices, 2):
            scope = self._scope_along(traversal, reduction, reducer, body)
        else:
            if self.world.dtype == "bool":
                self.world.dtype = "float32"
            scope = self.choices.pick(self.template.families)(self.world)
            self.result.derived += self.world.derived
        if not isinstance(scope, Scope):
            raise Rejected("no scope")
        for part, value in ((traversal, scope.traversal), (reduction, scope.reduction),
                            (reducer, scope.reducer)):  # fmt: skip
            self._bind(part, value)
        if "derived" in self.template.relations:
            self.result.derived += [t for t in topological([scope]) if isinstance(t, Scope)]
        return scope

    def _scope_along(self, traversal: Tree, reduction: Tree, reducer: Tree, body: Tree) -> Tensor:
        extents = [self._attribute(part) for part in (traversal, reduction)]
        outer, inner = (
            given if given is not None else self.world.shape(self.choices.pick(ranks))
            for given, ranks in zip(extents, ((2, 1, 3), (1, 0, 2)), strict=True)
        )
        chosen = self._attribute(reducer) or self.choices.pick(("sum", "max", "min", "prod"))
        self.slots = (*outer, *inner)
        if math.prod(self.slots) > MAX_POINTS:
            raise Rejected("too many points")
        raw = self._scalar(body, 2)
        self.slots = self.loose
        flat: Scalar = read_back(raw, self.template.known)
        # Rewriting flattens sums of sums, as the IR has them.
        return Scope(outer, inner, rewrite_leaves(flat, lambda part: part), chosen)

    # ---- scalars and indices ---------------------------------------------------

    def _scalar(self, tree: Tree, depth: int) -> Any:
        if isinstance(tree, Var):
            if tree.name in self.bound:
                return self.bound[tree.name]
            defined = self.template.definitions.get(tree.name)
            return self._bind(
                tree, self._any_scalar(depth) if defined is None else self._scalar(defined, depth)
            )
        head = tree[0]
        if head == "Num":
            return ("Num", self._real(tree[1], _REALS))
        if head == "Value":
            return ("Value", self._index(tree[1], depth))
        if head == "Convert":
            dtype = self._attribute(tree[1]) or self.choices.pick(("float32", "float64", "int64"))
            return ("Convert", self._bind(tree[1], dtype), self._scalar(tree[2], depth))
        if head == "Read":
            return self._read(tree, depth)
        if head == "Call":
            name = self._attribute(tree[1])
            if name is None:
                name = self.choices.pick([f.name for f in FUNCTIONS.values() if f.arity < 3])
            self._bind(tree[1], name)
            parts = self._members(tree[2], 1)
            arity = FUNCTIONS[name].arity if name in FUNCTIONS else len(parts)
            own = tree[2].name if isinstance(tree[2], Var) else "v"
            parts = (parts + [Var(f"{own}{n}") for n in range(len(parts), arity)])[:arity]
            return ("Call", name, self._vector(tree[2], parts, depth))
        if head in ("Prod", "Sum"):
            parts = self._members(tree[1], 3)
            if isinstance(tree[1], Var) and len(parts) < 2 and tree[1].name not in (
                self.template.lengths
            ):  # fmt: skip
                parts = [*parts, Var(f"{tree[1].name}1")]
            return (head, self._vector(tree[1], parts, depth))
        raise Rejected(f"no samples of {head}")

    def _vector(self, tree: Tree, parts: Sequence[Tree], depth: int) -> list[Any]:
        values = [self._scalar(part, depth - 1) for part in parts]
        self._bind(tree, tuple(values))
        return values

    def _read(self, tree: Tree, depth: int) -> Any:
        tensor = self._tensor(tree[1], self.world.type(self.choices.pick((1, 2, 0, 3))))
        if isinstance(tree[2], tuple) and tree[2][0] == "vec-of":
            at = [self._index(part, depth) for part in tree[2][1:]]
        else:
            at = [any_raw_index(self.world, self.slots, 1) for _ in tensor.shape]
            self._bind(tree[2], tuple(at))
        return ("Read", tensor, at, self._real(tree[3], (0.0, 0.0, 1.0, -math.inf, math.inf)))

    def _any_scalar(self, depth: int) -> Any:
        kind = self.choices.pick(("read", "read", "read", "number", "call", "sum", "prod"))
        if depth <= 0 or kind in ("read", "number"):
            if kind == "number":
                return ("Num", self.world.real(_REALS))
            return self._read(("Read", Var(""), Var(""), Var("")), 0)
        if kind == "call":
            fn = self.choices.pick(("relu", "abs", "max", "min", "tanh", "exp", "sign", "floor"))
            return ("Call", fn, [self._any_scalar(depth - 1) for _ in range(FUNCTIONS[fn].arity)])
        operands = [self._any_scalar(depth - 1) for _ in range(2)]
        return ("Sum" if kind == "sum" else "Prod", operands)

    def _number(self, tree: Tree, pool: Sequence[int], least: int | None = None) -> Any:
        given = self._attribute(tree)
        return self._bind(tree, self.world.number(pool, least) if given is None else given)

    def _real(self, tree: Tree, pool: Sequence[float]) -> Any:
        given = self._attribute(tree)
        return self._bind(tree, self.world.real(pool) if given is None else given)

    def _index(self, tree: Tree, depth: int) -> Any:
        if isinstance(tree, Var):
            if tree.name in self.bound:
                return self.bound[tree.name]
            defined = self.template.definitions.get(tree.name)
            if defined is not None:
                return self._bind(tree, self._index(defined, depth))
            return self._bind(tree, any_raw_index(self.world, self.slots, depth))
        head = tree[0]
        if head == "INum":
            return ("INum", self._number(tree[1], NUMBERS))
        if head == "It":
            slot = self._attribute(tree[1])
            slot = self._bind(tree[1], self.choices.pick(range(len(self.slots))) if slot is None
                              else slot)  # fmt: skip
            if not 0 <= slot < len(self.slots):
                raise Rejected("no such iterator")
            return ("It", slot, self._bind(tree[2], self.slots[slot]))
        if head == "IAdd":
            return ("IAdd", self._index(tree[1], depth - 1), self._index(tree[2], depth - 1))
        if head == "IMul":
            return ("IMul", self._number(tree[1], NUMBERS), self._index(tree[2], depth - 1))
        if head in ("IMin", "IMax"):
            return (head, self._index(tree[1], depth - 1), self._number(tree[2], NUMBERS))
        if head in _NUMBER_ROLES:
            value = self._index(tree[1], depth - 1)
            divisor = self._number(tree[2], DIVISORS, 1)
            if divisor < 1:
                # A divisor is positive, or the term has no meaning.
                raise Rejected("no divisor")
            return (head, value, divisor)
        raise Rejected(f"no samples of {head}")
