"""Prove rewrites of tensors for all sizes, at a number of ranks that covers all ranks.

    a @ b + a @ c = a @ (b + c)   ->   at each rank: equal shapes, and equal elements at [*n, i, j]

At one choice of ranks, the extents of a rule's tensors are symbolic, its axes are numbers, and its
other attributes are symbolic. The left side is supposed to be well-typed. The right side is shown
to be well-typed, to have the same shape, and the same element at each index, in each dtype.

**Ranks.** An operator treats the axes that it doesn't name independently, and all in the same way
(``operators.SPECTATORS``); so does each fact that is accepted (``forms.py``). Therefore:

- *Slices.* Take an axis of the result that nothing names and nothing reduces. The elements at one
  index of it are those of the same rule for slices of the operands, in which the axis has extent 1:
  the slice at that index, or the whole operand if it is broadcast along the axis or lacks it. This
  holds for each such axis on its own. For ``a`` of shape (5, 1, m, k) and ``b`` of (1, 3, k, n),
  ``(a @ b)[p, q] = a[p, 0] @ b[0, q]``. So both sides are equal if they are equal where each such
  axis has extent 1, and if their shapes are equal. A shape is compared axis by axis, and one
  axis of each kind (broadcast or not, in which operands) shows that.
- *Places.* Axes of extent 1 matter only by their number, since it says where the named axes of two
  operands meet. Axes are numbered from the left, and operands are aligned at the right. Where
  tensors of S different ranks meet (``ranks.py``), a number means S places. There has to be room
  for each order of these places and of the starts of the S operands, with an axis in each gap: S
  copies of the axes that are named by their numbers, n + S gaps for n variables that name an axis,
  these n axes, one more if ``Merge`` names two, and row and column of a product.
- *Sums.* An axis that is reduced can't be sliced. If the rule names sets of axes, all tensors have
  one rank, and axes of one gap that belong to the same sets can be exchanged and merged into one,
  whose extent is the product. So each gap needs one axis for each combination of m sets: 2^m. Two
  reversed axes are merged into a reversed one: ``(n - 1 - i) * m + (m - 1 - j)`` is the place
  ``n * m - 1 - (i * m + j)``.
- *Permutations* connect the axes of two frames (``frames.py``), if all tensors have one rank and
  each is always seen in one frame. An axis of the result that nothing names, in neither frame, has
  extent 1 after slicing, as the axis that is connected with it, and both can be left out: so named
  axes and one more suffice. An axis that is named in the result and behind the permutation, by
  ``b = order[a]``, is one.
- *Reshapes* keep the order of all elements. Adjacent axes that nothing names can be merged, if no
  operand is broadcast along one of them and not along the other. So a reshape beside broadcasts or
  sums is proved only at ranks that facts fix, unless it only appends axes of extent 1.

In a rule that names no axis, the ranks up to 2 contain every case, or up to 3 with a product: a
batch axis, to compare shapes, the row and the column. A rule with other facts or operators isn't
proved: the ranks at which it was shown may not cover the others. If facts fix the ranks of all
tensors, there are no others.

**Dtypes.** For each assignment of dtypes with which the left side is well-typed, the right side has
to have the same dtype. If all terms have one dtype, a rule is proved by sides that are the same
(``comparing.py``), or by equal polynomials: for floats if the rule isn't ``bitwise``, and for
integers that wrap. If the dtypes are mixed, only rules of views are proved, and rules whose results
are bools, by cases (``truths.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeAlias

import z3

from eqsynth.ir.operators import OPERATORS
from eqsynth.rules import Rule, RuleSet
from eqsynth.rules.tree import Tree, Var, is_call, render
from eqsynth.verify.comparing import Comparison
from eqsynth.verify.comprehensions import applied, rounds
from eqsynth.verify.dtypes import MIXED, TRUTHS, TRUTHS_OF
from eqsynth.verify.dtypes import modes as modes_of
from eqsynth.verify.facts import COMPARISONS, comparison, integer
from eqsynth.verify.forms import Form, Unsaid
from eqsynth.verify.integers import Integers, number
from eqsynth.verify.operators import Operators
from eqsynth.verify.orders import same_in_all_orders
from eqsynth.verify.symbolic import IllTyped, Symbolic, as_value, leaf, reciprocal
from eqsynth.verify.truths import same_truths
from eqsynth.verify.values import Value
from eqsynth.verify.verdict import Left


def verify_tensor_rule(rules: RuleSet, rule: Rule) -> str:
    """Prove a rewrite of tensors; return how it was proved, in words.

    Raises:
        Left: what is left to show.
    """
    form = Form(rules, rule)
    modes: frozenset[str] | None = None
    shown = 0
    for choice in form.choices():
        case = _Case(form, choice)
        try:
            case.match()
        except IllTyped:
            continue
        possible = case.ints.consistent()
        if possible.true:
            continue
        if not possible.false:
            raise Left(f"whether {case} has sizes on which its facts hold")
        if modes is None:
            # Z3 may choose extents that no tensor has. So it is asked for small ones first.
            small = case.ints.consistent([e <= _SMALL for e in case.extents()])
            modes = modes_of(form, case.bound, small.model or possible.model)
            if rule.numerics.kind == "bitwise" and not modes <= _EXACT and _sums_anew(form):
                raise Left("its sums come out the same to the last bit")
        case.show(modes, rule.numerics.kind == "bitwise")
        shown += 1
    if not shown:
        raise Left("sizes on which its facts hold: none were found")
    if form.limited:
        raise Left(f"ranks beyond {form.rank}: {form.limited}; to there it holds for all sizes")
    return f"for all sizes and ranks ({shown} cases to rank {form.rank} suffice)"


_Way: TypeAlias = Callable[[], bool]
# The extents at which dtypes are inferred, if the facts allow it.
_SMALL: Final = 64
_EXACT: Final = frozenset({"integers", "bools", TRUTHS, *TRUTHS_OF.values()})
# Reductions without rounding, and operators that a library computes row by row: the bits of a row
# don't depend on the other extents.
_SAME_BITS: Final = frozenset({"ReduceMax", "ReduceMin", "MaxPool2d", "Softmax", "LayerNorm"})


def _sums_anew(form: Form) -> bool:
    """Whether the right side has a sum that the left side hasn't: ``slice(a) @ b -> slice(a @ b)``.

    Both sums have the same products, but the order in which a library adds them depends on all
    extents of the operands. So the last bits may differ.
    """
    rule, rounding = form.rule, {name for name, own in form.defined.items() if rounds(own)}
    assert rule.equality is not None

    def summed(trees: Iterable[Tree]) -> set[Tree]:
        return {term for tree in trees for term in _summed(tree, rounding)}

    left, right = rule.equality
    made = summed((right, *(tree for _, tree in rule.written)))
    return not made <= summed((left, *rule.body))


def _summed(tree: Tree, rounding: Set[str]) -> Iterator[Tree]:
    """The subterms whose operator is a contraction or a reduction that rounds."""
    if not is_call(tree):
        return
    row = OPERATORS.get(tree[0])
    reduces = row is not None and row.kind in ("contraction", "reduction")
    if (reduces and tree[0] not in _SAME_BITS) or tree[0] in rounding:
        yield tree
    for part in tree[1:]:
        yield from _summed(part, rounding)


@dataclass
class _Case:
    """A rule at one choice of ranks and axes.

    Attributes:
        bound: variable -> its value: a symbolic tensor, integers, a text.
        making: set while the right side is built, whose conditions have to be proved.
    """

    form: Form
    choice: Mapping[str, Any]
    ints: Integers = field(default_factory=Integers)
    bound: dict[str, Any] = field(default_factory=dict)
    making: bool = False

    def __post_init__(self) -> None:
        self.operators = Operators(self.ints, self._require)
        computed = {fact[1].name for fact in self.form.facts if fact[0] == "=" and
                    isinstance(fact[1], Var) and is_call(fact[2])}  # fmt: skip
        for name, sort in self.form.sorts.items():
            chosen: Any = self.choice.get(name)
            kind = self.form.kinds.get(name, "")
            if sort == "Tensor" and name in self.form.leaves:
                self.bound[name] = leaf(name, self._extents(name, chosen))
            elif sort == "Tensors" and chosen is not None:
                self.bound[name] = tuple(
                    leaf(f"{name}.{n}", self._extents(name, chosen))
                    for n in range(self.form.length(name))
                )
            elif name in self.choice and sort == "Ints" and kind not in ("axes", "order"):
                self.bound[name] = tuple(self.ints.fresh(name) for _ in range(chosen))
            elif name in self.choice:
                self.bound[name] = chosen
            elif kind and sort == "i64" and name not in self.form.followed:
                self.bound[name] = self.ints.fresh(name)
            elif kind and sort in ("f64", "String") and name not in computed:
                self.bound[name] = Unsaid(name)

    def extents(self) -> Iterator[Any]:
        """The extents of the rule's tensors, and the integers in its shapes, that are variables."""
        for value in self.bound.values():
            integers = value.extents if isinstance(value, Symbolic) else value
            if isinstance(integers, tuple):
                yield from (e for e in integers if z3.is_expr(e))

    def _extents(self, name: str, rank: int) -> tuple[Any, ...]:
        extents = tuple(self.ints.fresh(name) for _ in range(rank))
        self.ints.suppose(*(e >= 0 for e in extents))
        return extents

    def __str__(self) -> str:
        return ", ".join(f"{name}: {chosen}" for name, chosen in self.choice.items()) or "it"

    def _require(self, condition: Any) -> None:
        if not self.making:
            self.ints.suppose(condition)
        elif not self.ints.holds(condition):
            raise Left(f"the right side is well-typed ({_short(condition)}; {self})")

    # ---- what is matched ----------------------------------------------------------------

    def match(self) -> None:
        """Suppose each fact as soon as its variables are known.

        Raises:
            IllTyped: no term matches at these ranks.
        """
        waiting = list(self.form.facts)
        while waiting:
            left = [fact for fact in waiting if not self._supposed(fact)]
            if len(left) == len(waiting):
                return  # The variables of the other facts stay unknown: these aren't supposed.
            waiting = left

    def _supposed(self, fact: Tree) -> bool:
        """Suppose a fact and return True; return False if a variable in it isn't known yet."""
        head, *args = fact
        try:
            if head != "=":
                if head in COMPARISONS and any(isinstance(self.of(arg), Unsaid) for arg in args):
                    return True
                said = comparison(fact, self.ints, self.of)
                if said is not None:
                    self.ints.suppose(said)
                return True
            for one, two in (args, args[::-1]):
                if isinstance(one, Var) and one.name not in self.bound:
                    if is_call(two) and two[0] == "to-i64":
                        # Any integer; another fact may say which number it is.
                        self.bound[one.name] = self.ints.fresh(one.name)
                        return True
                    self.bound[one.name] = self.of(two)
                    return True
            self._unified(*map(self.of, args))
        except KeyError:
            return False
        return True

    def _unified(self, a: Any, b: Any) -> None:
        if isinstance(a, tuple) and isinstance(b, tuple):
            if len(a) != len(b):
                raise IllTyped
            for x, y in zip(a, b, strict=True):
                self._unified(x, y)
        elif _is_integer(a) and _is_integer(b):
            if isinstance(a, int) and isinstance(b, int) and a != b:
                raise IllTyped
            self.ints.suppose(number(a) == b)

    def of(self, tree: Tree, bound: Mapping[str, Any] | None = None) -> Any:
        """The value of an expression.

        Args:
            bound: the values of its variables, if it isn't an expression of the rule itself.

        Raises:
            KeyError: a variable in it isn't known yet.
            Left: an operation in it isn't known here.
        """
        def of(tree: Tree) -> Any:
            return self.of(tree, bound)

        if isinstance(tree, Var):
            return (self.bound if bound is None else bound)[tree.name]
        if not is_call(tree):
            return tree
        head, *args = tree
        if head in ("+", "-", "*", "/", "%", "min", "max", "abs"):
            if all(_is_integer(of(arg)) for arg in args):
                return integer(tree, self.ints, of)
            if head == "/" and args[0] == 1.0 and is_call(args[1]) and args[1][0] == "to-f64":
                count = of(args[1][1])
                if self.ints.holds(number(count) >= 1):
                    return reciprocal(count)
            return Unsaid(render(tree))
        if head == "to-f64" and _is_integer(of(args[0])):
            return as_value(of(args[0]))
        if head == "dtype":
            return Unsaid(render(tree))
        parts = [of(arg) for arg in args]
        match head:
            case "shape" if isinstance(parts[0], Symbolic):
                return parts[0].extents
            case "vec-of" | "vec-empty":
                return tuple(parts)
            case "vec-append":
                return tuple(chain.from_iterable(parts))
            case "vec-push":
                return (*parts[0], parts[1])
            case "vec-length":
                return len(parts[0])
            case "vec-get" if isinstance(parts[1], int):
                if not 0 <= parts[1] < len(parts[0]):
                    raise IllTyped
                return parts[0][parts[1]]
            case "vec-set" if isinstance(parts[1], int):
                if not 0 <= parts[1] < len(parts[0]):
                    raise IllTyped
                return (*parts[0][: parts[1]], parts[2], *parts[0][parts[1] + 1 :])
        if self.form.rules.known.is_constructor(head):
            plain = [part.name if isinstance(part, Unsaid) else part for part in parts]
            if head in self.form.defined:
                definition = self.form.defined[head]
                return applied(definition, plain, self.of, self.ints, self._require)
            return self.operators.apply(head, plain)
        raise Left(f"the expression {render(tree)}")

    # ---- what is made -------------------------------------------------------------------

    def show(self, modes: frozenset[str], bitwise: bool) -> None:
        """Show that both sides are tensors of one shape with equal elements.

        Args:
            modes: the kinds of dtypes for which the elements have to be equal (``dtypes.modes``).
            bitwise: floats have to be equal to the last bit.

        Raises:
            Left: what is left to show.
        """
        assert self.form.rule.equality is not None
        try:
            left = self.of(self.form.rule.equality[0])
            self.making = True
            right = self.of(self.form.rule.equality[1])
        except IllTyped:
            raise Left(f"the right side is well-typed ({self})") from None
        except KeyError as unknown:
            raise Left(f"what {unknown} is") from None
        if not (isinstance(left, Symbolic) and isinstance(right, Symbolic)):
            raise Left("sides that are no tensors")
        if left.rank != right.rank:
            raise Left(f"both sides have one rank ({self})")
        for a, b in zip(left.extents, right.extents, strict=True):
            if not self.ints.holds(number(a) == b):
                raise Left(f"both sides have one shape ({self})")
        index = tuple(self.ints.fresh("i") for _ in left.extents)
        for i, extent in zip(index, left.extents, strict=True):
            self.ints.suppose(i >= 0, i < extent)
        a, b = left.at(index), right.at(index)
        if MIXED in modes:
            # The comparison of elements supposes one dtype. With several, the two sides may convert
            # at different places.
            raise Left(f"the elements are equal where dtypes are mixed ({self})")
        if TRUTHS in modes:
            if not same_truths(a, b, self.ints, self.form.bools):
                raise Left(f"the elements are true in the same cases ({self})")
            modes -= {TRUTHS}
        if Comparison(self.ints).same(a, b):
            return
        if self.form.computing and not modes <= {"floats"}:
            raise Left(f"what {self.form.computing[0]} computes of numbers that aren't floats")
        for mode in sorted(modes):
            said, ways = self._ways(mode, bitwise, a, b)
            if not _any(ways):
                raise Left(f"the elements are {said} ({self})")

    def _ways(self, mode: str, bitwise: bool, a: Value, b: Value) -> tuple[str, list[_Way]]:
        """What has to be shown of two elements in a kind of dtypes, in words, and the ways to show
        it, any of which suffices."""

        def ordered(truths: bool, whole: bool) -> _Way:
            return lambda: same_in_all_orders(a, b, self.ints, truths=truths, whole=whole)

        partial = self.form.rule.numerics.for_proofs
        real = Comparison(self.ints, bitwise=False, partial=partial)
        if mode == "floats" and not bitwise:
            return "equal over the reals", [
                lambda: real.same(a, b), lambda: real.equal(a, b), ordered(False, False),
                lambda: real.equal_in_cases(a, b),
            ]  # fmt: skip
        if mode == "integers":
            whole = Comparison(self.ints, whole=True)
            return "equal as integers that wrap", [
                lambda: whole.same(a, b), lambda: whole.equal(a, b), ordered(False, True),
                lambda: whole.equal_in_cases(a, b),
            ]  # fmt: skip
        if mode == "bools":
            leaves = self.form.leaves
            return "true in the same cases", [lambda: same_truths(a, b, self.ints, leaves)]
        if mode in TRUTHS_OF.values():
            ways: list[_Way] = [lambda: same_truths(a, b, self.ints, self.form.bools)]
            if mode == TRUTHS_OF["integers"] or not bitwise:
                ways.append(ordered(True, mode == TRUTHS_OF["integers"]))
            return "true in the same cases", ways
        what = {"floats": "to the last bit", "views": "in their places"}
        return f"the same {what.get(mode, f'where all are {mode}')}", []


def _any(ways: Iterable[_Way]) -> bool:
    """Whether one of several ways shows what is to be shown.

    Raises:
        Left: none does, and the first that was no way at all says why.
    """
    why: Left | None = None
    for way in ways:
        try:
            if way():
                return True
        except Left as left:
            why = why or left
    if why is not None:
        raise why
    return False


def _is_integer(x: Any) -> bool:
    return (isinstance(x, int) and not isinstance(x, bool)) or z3.is_expr(x)


def _short(condition: Any) -> str:
    return " ".join(str(condition).split())[:60]
