"""A rule of tensors before its ranks are chosen: its facts, the roles of its variables, the ranks.

    (Permute (Add x y) order)   ->   leaves [x, y], kinds {x: Tensor, y: Tensor, order: order}

:class:`Form` also says up to which rank the rule has to be proved, and whether that suffices for
all ranks (``rewrites.py`` argues why), and enumerates the choices of ranks and axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain, combinations, permutations, product
from math import prod
from typing import Any, Final

from eqsynth.egraph.defined import operators_of
from eqsynth.ir.operators import OPERATORS
from eqsynth.rules import Rule, RuleSet
from eqsynth.rules.sorts import infer_sorts
from eqsynth.rules.tree import VEC_BUILDERS, Tree, Var, is_call, render
from eqsynth.verify.comprehensions import along_an_axis, case_of, computes, kinds_of
from eqsynth.verify.facts import COMPARISONS
from eqsynth.verify.frames import Frames
from eqsynth.verify.operators import KINDS, SPECTATORS
from eqsynth.verify.ranks import Ranks, is_rank
from eqsynth.verify.verdict import Left

_PAIRS: Final = frozenset({"kernel", "stride", "padding", "dilation", "output_padding", "size"})
_LISTS: Final = frozenset({"shape", "before", "after"})
# Kinds of attributes that count axes, or say which axes an operator means.
_COUNTED: Final = frozenset({"axis", "axes", "order"})
# The most combinations of ranks and axes, and the largest rank, that are tried.
_MOST_CASES: Final = 20_000
_MOST_RANK: Final = 7


@dataclass(frozen=True)
class Unsaid:
    """The unknown value of a text (such as a dtype) or of a number that isn't an integer."""

    name: str


class Form:
    """The properties of a rule that don't depend on the choice of ranks and axes.

    Attributes:
        facts: the facts of the rule's body, and of its ``written`` terms.
        sorts: variable -> sort.
        kinds: variable -> the attribute of an operator that it stands for (``axis``, ``stride``),
            or its sort where it is a tensor operand.
        heads: the constructors in the rule.
        defined: those of ``heads`` that a rule file defines by a comprehension, with what they are.
        rows: the rows of the operators of rule files, if there are any in the rule.
        computing: those of ``defined`` whose elements are more than moved elements of operands.
        of_any_rank: those of ``heads`` whose tensors can have any rank.
        literal: the rank that the literal axes and shapes in the rule need (axis 1 needs rank 4).
        first: the number of axes, from the left, up to the last one that the rule names by its
            number (axis 1: 2).
        meeting: the number of classes of tensors of several ranks that meet (``ranks.py``).
        leaves: the variables that stand for any tensor.
        broadcasts: whether operands are broadcast together.
        reshapes: whether a reshape does more than append axes of extent 1.
        frames: which axes a permutation connects (``frames.py``); None if the argument about ranks
            isn't about permutations.
        bools: the variables that a fact says are tensors of bools.
        rank: the largest rank to prove.
        ranks: tensor or shape -> its rank, where a fact fixes it.
        limited: why proofs up to ``rank`` don't cover all ranks; empty if they do.
    """

    def __init__(self, rules: RuleSet, rule: Rule) -> None:
        assert rule.equality is not None
        self.rules, self.rule = rules, rule
        written = [("=", Var(name), tree) for name, tree in rule.written
                   if not isinstance(tree, Var)]  # fmt: skip
        self.facts: tuple[Tree, ...] = (*rule.body, *written)
        trees = (*self.facts, ("=", *rule.equality))
        self.sorts = {n: min(s) for n, s in infer_sorts(trees, rules.known).items()}
        self.kinds: dict[str, str] = {}
        self.heads: set[str] = set()
        self.defined = {
            name: own for name, own in rules.definitions.items()
            if any(name in _heads(tree) for tree in trees) and case_of(own) is not None
        }  # fmt: skip
        self.rows = operators_of(rules.definitions) if self.defined else {}
        self.computing = sorted(name for name, own in self.defined.items() if computes(own))
        self.of_any_rank: set[str] = set()
        # Variables whose number of axes the rule fixes: tables of embeddings, which have two axes,
        # and shapes whose length a fact gives. The rule names all axes of these.
        self.fixed = {
            side[1].name for fact in self.facts if fact[0] == "=" for side in fact[1:]
            if is_call(side) and side[0] == "vec-length" and isinstance(side[1], Var)
            and any(isinstance(length, int) for length in fact[1:])
        }  # fmt: skip
        self.literal = self.first = 0
        self.strange = ""
        self.reshapes = False
        for tree in trees:
            self._scan(tree)
        defined = {fact[1].name for fact in self.facts if fact[0] == "=" and
                   isinstance(fact[1], Var) and self._is_term(fact[2])}  # fmt: skip
        self.leaves = [n for n, s in self.sorts.items() if s == "Tensor" and n not in defined
                       and n in self.kinds]  # fmt: skip
        self.bools = frozenset(
            side[1].name for fact in self.facts if fact[0] == "=" and "bool" in fact[1:]
            for side in fact[1:] if is_call(side) and side[0] == "dtype" and
            isinstance(side[1], Var)
        )  # fmt: skip
        self.broadcasts = bool(self.heads & {"Expand", "Matmul"}) or any(
            OPERATORS[h].kind == "elementwise" and (OPERATORS[h].arity or 2) > 1
            for h in self.heads if h in OPERATORS
        )  # fmt: skip
        along = {n: kinds_of(own) for n, own in self.defined.items() if along_an_axis(own)}
        self.meeting = len(Ranks(trees, self.sorts, along).meeting)
        self.frames: Frames | None = None
        if "Permute" in self.of_any_rank and not (self.meeting or self.first or self._sets):
            frames = Frames(self.facts, rule.equality, self.sorts, along)
            self.frames = frames if frames.consistent else None
        self.rank = max(self.covering_rank(), self.literal)
        self.windows = bool(self.heads & {"Conv2d", "MaxPool2d", "AvgPool2d"})
        self.ranks: dict[str, int] = {}
        self.limited = self._limits()

    @property
    def _sets(self) -> int:
        """The number of variables that stand for a set of axes of any size."""
        return sum(k == "axes" and self.sorts[n] == "Ints" for n, k in self.kinds.items())

    def covering_rank(self) -> int:
        """The rank up to which proofs cover all ranks (``rewrites.py`` argues why)."""
        marks = sum(kind == "axis" or (kind == "axes" and self.sorts[n] == "i64")
                    for n, kind in self.kinds.items())  # fmt: skip
        if self.frames is not None:
            return max(2, len(self.frames.named) - len(self.frames.followed) + 1)
        last = 2 if "Matmul" in self.heads else 0
        if not (marks or self._sets or self.first):
            return 3 if last else 2
        starts = max(self.meeting, 1)
        groups = (marks + starts) << self._sets
        return self.first * starts + groups + marks + ("Merge" in self.heads) + last

    @property
    def followed(self) -> Set[str]:
        """The variables that name an axis behind a permutation, which a fact determines."""
        return self.frames.followed if self.frames is not None else frozenset()

    def _is_term(self, tree: Tree) -> bool:
        return is_call(tree) and self.rules.known.is_constructor(tree[0])

    def _scan(self, tree: Tree) -> None:
        """Record for each variable in a term which argument of which operator it is."""
        if not is_call(tree):
            return
        if self._is_term(tree):
            if tree[0] == "Embedding" and isinstance(tree[1], Var):
                self.fixed.add(tree[1].name)
            self.heads.add(tree[0])
            if not (tree[0] == "Iota" and self._is_fixed(tree[1])):
                self.of_any_rank.add(tree[0])
            self.reshapes |= tree[0] == "Reshape" and not self._adds_ones(*tree[1:])
            inputs = self.rules.known.signatures[tree[0]].inputs
            tensors = sum(sort in ("Tensor", "Tensors") for sort in inputs)
            own = self.defined.get(tree[0])
            names = ("",) * tensors + (kinds_of(own) if own else KINDS.get(tree[0], ()))
            for arg, sort, kind in zip(tree[1:], inputs, names, strict=False):
                if isinstance(arg, Var):
                    known = self.kinds.setdefault(arg.name, kind or sort)
                    if known != (kind or sort) and {known, kind} & _COUNTED:
                        self.strange = f"{arg.name} is {known} and {kind or sort}"
                elif kind in _LISTS | _PAIRS and is_call(arg) and arg[0] == "vec-of":
                    if kind in _LISTS:
                        self.literal = max(self.literal, len(arg) + 1)
                    for part in arg[1:]:
                        if isinstance(part, Var):
                            self.kinds.setdefault(part.name, "extent")
                elif kind == "axis" and isinstance(arg, int):
                    self._number(arg)
                elif kind == "axes" and is_call(arg):
                    self._axes(arg)
        if tree[0] == "vec-of":
            for part in tree[1:]:
                if isinstance(part, Var) and self.sorts.get(part.name) == "Tensor":
                    self.kinds.setdefault(part.name, "Tensor")
        for part in tree[1:]:
            self._scan(part)

    def _adds_ones(self, x: Tree, shape: Tree) -> bool:
        """Whether a reshape only appends axes of extent 1."""
        shape, own = self._written(shape), ("shape", x)
        if not is_call(shape) or shape[0] != "vec-append":
            return False
        first, *rest = shape[1:]
        parts = map(self._written, rest)
        appended = all(is_call(part) and {*part[1:]} <= {1} for part in parts)
        return appended and (first == own or any(
            fact[0] == "=" and {*fact[1:]} == {first, own} for fact in self.facts
        ))  # fmt: skip

    def _written(self, tree: Tree) -> Tree:
        """The list of which a fact says that a variable is it; another tree itself."""
        lists = (
            two for fact in self.facts if fact[0] == "=" for one, two in (fact[1:], fact[:0:-1])
            if one == tree and isinstance(tree, Var) and is_call(two) and two[0] in VEC_BUILDERS
        )  # fmt: skip
        return next(lists, tree)

    def _axes(self, arg: Tree) -> None:
        for part in arg[1:]:
            if isinstance(part, Var):
                self.kinds.setdefault(part.name, "axis")
            elif isinstance(part, int):
                self._number(part)

    def _number(self, axis: int) -> None:
        """Record an axis that the rule names by its number."""
        self.literal, self.first = max(self.literal, axis + 3), max(self.first, axis + 1)

    def _limits(self) -> str:
        """Why a proof up to ``self.rank`` doesn't cover all ranks; an empty text if it does."""
        lists_of_extents = [n for n, sort in self.sorts.items() if sort == "Ints"]
        for name in (*self.leaves, *(n for n in lists_of_extents if self.kinds.get(n) == "shape")):
            rank = self._fixed_rank(name)
            if rank is not None:
                self.ranks[name] = rank
        self.rank = max(self.rank, *self.ranks.values(), 0)
        lists = "Tensors" in map(self.sorts.get, self.kinds)
        if self.ranks.keys() >= {*self.leaves} and not lists and not self._has_free_shape():
            self.rank = max(2, self.literal, *self.ranks.values())
            return ""
        odd = next((f for f in self.facts if not self._invariant(f)), None)
        if self.rank > _MOST_RANK:
            self.rank = _MOST_RANK
            return "more axes than cases"
        strange = sorted(
            head for head in self.of_any_rank
            if (head in OPERATORS and head not in SPECTATORS
                and not (head == "Permute" and self.frames is not None))
            or (head in self.defined and not along_an_axis(self.defined[head]))
        )  # fmt: skip
        if strange:
            return f"{strange[0]} names all axes"
        if self.reshapes and (self._sets or self.broadcasts):
            return "Reshape beside broadcasts or sums"
        if self._sets and self.meeting:
            return "sets of axes in tensors of several ranks"
        if self.strange:
            return self.strange
        if self.literal and self.literal > self.rank:
            return "an axis by its number"
        return f"the fact {render(odd)}" if odd is not None else ""

    def _fixed_rank(self, name: str) -> int | None:
        """The rank of a tensor or the length of a shape, if a fact fixes it and it is small."""
        shape = Var(name) if self.sorts[name] == "Ints" else ("shape", Var(name))
        for fact in self.facts:
            if fact[0] == "=" and ("vec-length", shape) in fact[1:]:
                rank = next((side for side in fact[1:] if isinstance(side, int)), None)
                if rank is not None and rank <= _MOST_RANK:
                    return rank
        return None

    def _has_free_shape(self) -> bool:
        """Whether a variable stands for a shape of any length, which no fact determines."""
        known = {*self.fixed, *(
            one.name for fact in self.facts if fact[0] == "=" for one, two in
            (fact[1:], fact[:0:-1]) if isinstance(one, Var) and is_call(two)
        )}  # fmt: skip
        others = _PAIRS | {"axes", "order"}
        return any(sort == "Ints" and name not in known and self.kinds.get(name) not in others
                   for name, sort in self.sorts.items())  # fmt: skip

    def _is_fixed(self, tree: Tree) -> bool:
        return isinstance(tree, Var) and tree.name in self.fixed

    def _invariant(self, fact: Tree) -> bool:
        """Whether a fact holds just as well after adjacent axes that nothing names are merged."""
        if fact[0] == "=" and any(self._is_term(side) for side in fact[1:]):
            return True
        if self.frames is not None and fact[0] == "=" and any(
            isinstance(side, Var) and side.name in self.frames.followed for side in fact[1:]
        ):
            return True
        if fact[0] == "=" and all(map(is_rank, fact[1:])):
            return True  # Both lose an axis (``ranks.py``).
        if fact[0] in COMPARISONS:
            a, b = fact[1:]
            if fact[0] == "!=" and all(
                isinstance(side, Var) and self.kinds.get(side.name) == "axis" for side in (a, b)
            ):
                # Two axes of tensors that all have one rank are two, whatever is between them.
                return not self.meeting
            # A comparison of an axis with ``rank - n``, the first of the last ``n`` axes.
            for axis, other in ((a, b), (b, a)):
                if isinstance(axis, Var) and self.kinds.get(axis.name) == "axis" and is_call(other):
                    rest = other[0] == "-" and is_call(other[1]) and other[1][0] == "vec-length"
                    if rest and isinstance(other[2], Var):
                        return self.kinds.get(other[2].name) == "axes"
        return all(self._by_axis(part) for part in fact[1:])

    def _by_axis(self, tree: Tree) -> bool:
        """Whether an expression depends on neither the number of axes nor an axis's number, except
        to select an extent: ``(vec-get (shape x) axis)`` passes, ``(+ axis 1)`` doesn't."""
        if isinstance(tree, Var):
            return self.kinds.get(tree.name) not in _COUNTED
        if not is_call(tree):
            return True
        if tree[0] == "vec-get":
            vec, at = tree[1:]
            if is_call(vec) and vec[0] == "shape":
                if self._is_fixed(vec[1]):
                    return isinstance(at, int)
                return isinstance(at, Var) and self.kinds.get(at.name) == "axis"
            axis = isinstance(at, Var) and self.kinds.get(at.name) == "axis"
            if isinstance(vec, Var) and self.kinds.get(vec.name) == "shape" and axis:
                return True
            pair = isinstance(vec, Var) and (
                self.kinds.get(vec.name) in _PAIRS or self.sorts.get(vec.name) == "Tensors"
            )
            return pair and isinstance(at, int)
        if tree[0] == "vec-length":
            if self._is_fixed(tree[1]):
                return True
            return isinstance(tree[1], Var) and self.sorts.get(tree[1].name) == "Tensors"
        if tree[0] == "vec-of":
            self.rank = max(self.rank, len(tree) + 1)
        if tree[0] == "shape":
            return isinstance(tree[1], Var)
        return all(self._by_axis(part) for part in tree[1:])

    def choices(self) -> Iterator[Mapping[str, Any]]:
        """All combinations of ranks, axes and lengths: variable -> choice.

        Raises:
            Left: there are too many combinations.
        """
        ranks = [*range(self.rank + 1), *((4,) if self.windows and self.rank < 4 else ())]
        options: dict[str, list[Any]] = {name: list(ranks) for name in self.leaves}
        most = max(ranks)
        for name, kind in self.kinds.items():
            sort = self.sorts.get(name)
            if name in self.followed:
                continue
            if sort == "i64" and kind in ("axis", "axes"):
                options[name] = list(range(most + (kind == "axes")))
            elif kind in ("keepdim", "align_corners"):
                options[name] = [0, 1]
            elif sort == "Ints" and kind == "axes":
                options[name] = list(chain.from_iterable(
                    combinations(range(most), n) for n in range(most + 1)))  # fmt: skip
            elif sort == "Ints" and kind == "order":
                options[name] = [p for n in range(most + 1) for p in permutations(range(n))]
            elif sort == "Ints":
                options[name] = [2] if kind in _PAIRS else ranks
            elif sort == "Tensors":
                self.length(name)
                options[name] = ranks
        for name, rank in self.ranks.items():
            options[name] = [rank]
        count = prod(map(len, options.values()))
        if count > _MOST_CASES:
            raise Left(f"{count} cases of ranks and axes: more than are looked at")
        for chosen in product(*options.values()):
            yield dict(zip(options, chosen, strict=True))

    def length(self, name: str) -> int:
        """The number of tensors of a list, which a fact has to give.

        Raises:
            Left: no fact does.
        """
        for fact in self.facts:
            if fact[0] == "=" and ("vec-length", Var(name)) in fact[1:]:
                found = next((side for side in fact[1:] if isinstance(side, int)), None)
                if found is not None:
                    return found
        raise Left("lists of any length")


def _heads(tree: Tree) -> Iterator[str]:
    if is_call(tree):
        yield tree[0]
        for part in tree[1:]:
            yield from _heads(part)
