"""Tactics can't be unsound. Each tactic is replaced by one that proposes random steps, then by one
that proposes random terms, and all members of an e-class are still equal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from eqsynth.calculus.close import Close, Part, operands_of
from eqsynth.calculus.commute import Commute
from eqsynth.calculus.define import Comprehension, Define
from eqsynth.calculus.deriving import LAWS as CALCULUS
from eqsynth.calculus.deriving import Inside, Least, Match, Step
from eqsynth.calculus.inline import Inline
from eqsynth.calculus.pick import Pick
from eqsynth.calculus.rearrange import Rearrange
from eqsynth.calculus.recount import Count, Cover, Recount
from eqsynth.calculus.restrict import Mask, Reach, Restrict, guarded
from eqsynth.calculus.same import Same
from eqsynth.calculus.select import Numbers, rows
from eqsynth.calculus.sign import Unclip
from eqsynth.certificates import certify
from eqsynth.egraph import answers, asking
from eqsynth.egraph.answers import asked
from eqsynth.egraph.defined import comprehension
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, PROVE_PHASES, Limits, Phase
from eqsynth.egraph.tactics.entry import Entry
from eqsynth.egraph.tactics.moving import bounded, read_by, reindexed, termwise
from eqsynth.egraph.tactics.paths import Path
from eqsynth.egraph.tactics.requests import Stated, Using
from eqsynth.egraph.tactics.table import LAWS
from eqsynth.egraph.view import View
from eqsynth.errors import EqsynthError, EquivalenceError, LawError
from eqsynth.expansion.expanded import Expand
from eqsynth.ir.index import Index, It
from eqsynth.ir.scalar import (
    Call,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    children,
    composites,
    product,
    reads,
    rebuild,
    total,
)
from eqsynth.ir.scopes import (
    bare,
    reduction_iterators,
    same_scope,
    scope_over,
    traversal_iterators,
)
from eqsynth.ir.tensor import ClassRef, Op, Scope, Tensor, topological
from eqsynth.rules import RuleSet, load_rules
from eqsynth.testing.consistency import assert_egraph_consistent
from tests.egraph.programs import PROGRAMS
from tests.turns import TURNS, by_turns

RULES = load_rules().select(numerics=("bitwise", "real", "cancels"))
LIMITS = Limits(400, 20.0)
# The forms in which proofs meet: rules of `proof` numerics, and a phase that asks for them before
# random answers of other laws have filled the e-graph.
PROOF_RULES = load_rules()
PROOF_PHASES = (
    PROVE_PHASES[0],
    Phase("forms", ("expand-explore", "points-explore", "define", "normal"), 6),
)
FORM_LAWS = frozenset({"expand", "expand-cancels", "expand-points"})
FORMS = ("softmax", "elementwise", "pad-and-crop", "largest-of-sums")
# A program for each kind of laws: of products, sums, windows, maxima, maps, gathers and numbers.
NAMES = (
    "attention", "biased-chain", "padded-maximum", "softmax", "looked-up-rows", "taps-apart",
    "identity-matrix", "residual-block", "squared-distances", "pad-and-crop", "rows-in-reverse",
    "windowed-attention",
)  # fmt: skip


class Proposals:
    """Random steps from a term. Their arguments mostly make no sense."""

    def __init__(self, random: Random, view: View) -> None:
        self.random, self.view = random, view
        refs = sorted(view.refs.values(), key=lambda ref: ref.handle)
        self.scopes = [scope for ref in refs for scope in view.scopes(ref)]
        self.operators = [op for ref in refs for op in view.operators(ref)] or [Op("Full")]
        self.refs = refs

    def steps(self, term: Tensor) -> tuple[Step, ...]:
        return tuple(self.step(term) for _ in range(self.random.choice((1, 1, 1, 2))))

    def step(self, term: Tensor) -> Step:
        if isinstance(term, Op):
            at = self.random.randrange(len(term.args))
            args = [*term.args[:at], self._scope(term.args[at]), *term.args[at + 1 :]]
            return Define(Op(term.name, tuple(args), term.attrs))
        if not isinstance(term, Scope):
            return self.random.choice((self.define, self.match))(term)
        kind = self.random.choice([*CALCULUS])
        made: Callable[[Scope], Step] = getattr(self, kind.__name__.lower())
        return made(term)

    def some(self, of: Iterable[Any]) -> list[Any]:
        return [one for one in of if self.random.random() < 0.6]

    def groups(self, term: Scope) -> tuple[frozenset[int], ...]:
        places = list(range(len(operands_of(term.body))))
        self.random.shuffle(places)
        cut = self.random.randint(0, len(places))
        both = frozenset(places[:cut]), frozenset(places[cut:])
        return tuple(group for group in both if group or self.random.random() < 0.1)

    def _scope(self, tensor: Tensor) -> Scope:
        """Return a scope: mostly a member of the e-class, otherwise any scope, preferably of the
        same type."""
        own = self.view.scopes(tensor) if isinstance(tensor, ClassRef) else []
        alike = [scope for scope in self.scopes if scope.type == tensor.type]
        options = [found for found in (own, own, alike, self.scopes) if found]
        return self.random.choice(self.random.choice(options))

    def _read(self, scope: Scope) -> Read:
        found = list(reads(scope.body))
        return self.random.choice(found) if found else Read(self.random.choice(self.refs), ())

    def _index(self, its: Sequence[It]) -> Index:
        index = Index(self.random.choice((0, 0, 0, 1, -1)))
        for it in self.random.sample(list(its), min(len(its), self.random.choice((1, 1, 2)))):
            index = index + bare(it) * self.random.choice((1, 1, 1, 2, -1))
        return index // 2 if self.random.random() < 0.1 else index

    def close(self, scope: Scope) -> Close:
        inner = reduction_iterators(scope)
        return Close(tuple(Part(g, frozenset(self.some(inner))) for g in self.groups(scope)))

    def commute(self, scope: Scope) -> Commute:
        return Commute(self.groups(scope))

    def pick(self, scope: Scope) -> Pick:
        its = [*traversal_iterators(scope), *reduction_iterators(scope), It(0, 1)]
        summed, picked, value = (self.random.choice(its) for _ in range(3))
        return Pick(summed, picked, bare(value))

    def _operator(self, tensor: Tensor) -> Op:
        """Return an operator: mostly a member of the e-class, otherwise any operator."""
        own = self.view.operators(tensor) if isinstance(tensor, ClassRef) else []
        return self.random.choice([*own] * 4 + self.operators)

    def _term(self, tensor: Tensor) -> Tensor:
        """Return a member of the e-class or another operator, perhaps with arguments of other
        shapes."""
        op = self._operator(tensor)
        args = list(op.args)
        if args and self.random.random() < 0.5:
            at = self.random.randrange(len(args))
            order = tuple(self.random.sample(range(len(args[at].shape)), len(args[at].shape)))
            args[at] = Op("Permute", (args[at],), (order,))
        return Op(op.name, tuple(args), op.attrs)

    def define(self, tensor: Tensor) -> Define:
        op = self._operator(tensor)
        text = "(x) [*n] = x[*n]" if self.random.random() < 0.3 else ""
        return Define(Comprehension(text, (self.random.choice(self.refs),), ()) if text else op)

    def match(self, tensor: Tensor) -> Match:
        if isinstance(tensor, Scope) and self.random.random() < 0.5:
            inverse = self.random.choice((self.copied, self.counted_back, self.looked_up))
            return inverse(tensor)
        term = self._term(tensor)
        written = [(op, by) for op in topological([term]) if isinstance(op, Op)
                   if (by := comprehension(op, self.view.meanings))]  # fmt: skip
        known: list[tuple[Tensor, Any]] = [*self.some(written), *written]
        if isinstance(tensor, ClassRef):
            known += self.some([(tensor, self._operator(tensor))])
        if self.random.random() < 0.2:
            known += [(self.random.choice(self.refs), self._scope(tensor))]
        steps = (Least(),) if self.random.random() < 0.3 else ()
        return Match(term, tuple(known), steps)

    def inline(self, scope: Scope) -> Inline:
        read = self._read(scope)
        return Inline(read, self._scope(read.tensor))

    def inside(self, scope: Scope) -> Inside:
        found = [read.tensor for read in reads(scope.body) if isinstance(read.tensor, Scope)]
        inner = self.random.choice(found) if found else self._scope(self._read(scope).tensor)
        return Inside(inner, (self.step(inner),))

    def least(self, _scope: Scope) -> Least:
        return Least()

    def numbers(self, scope: Scope) -> Numbers:
        tensor = self._read(scope).tensor
        found = [
            float(op.attrs[1])
            for op in (self.view.operators(tensor) if isinstance(tensor, ClassRef) else ())
            if op.name == "Full" and isinstance(op.attrs[1], float)
        ]
        return Numbers(((tensor, self.random.choice([1.0, 0.0, *found, *found])),))

    def rearrange(self, scope: Scope) -> Rearrange:
        return Rearrange(self._another(scope.body))

    def _another(self, body: Scalar) -> Scalar:
        kind = self.random.choice(("out", "twice", "without", "inside", "same"))
        parts = list(children(body))
        if kind == "out" and isinstance(body, Prod):
            sums = [part for part in parts if isinstance(part, Sum)]
            if sums:
                parts.remove(sums[0])
                return total([product([*parts, term]) for term in sums[0].terms])
        if kind == "twice":
            return total([product([Num(0.5), body]), product([Num(0.5), body])])
        if kind == "without" and len(parts) > 1 and isinstance(body, Prod | Sum):
            return rebuild(body, parts[1:])
        if kind == "inside" and parts:
            return rebuild(body, [self._another(parts[0]), *parts[1:]])
        return body

    def _mask(self, scope: Scope) -> Mask:
        read = self._read(scope)
        return Mask(read, self._scope(read.tensor), self.random.choice((0.0, 1.0, -math.inf)))

    def reach(self, scope: Scope) -> Reach:
        guards = [part for part in composites(scope.body) if guarded(part)]
        guard = self.random.choice(guards) if guards else scope.body
        asked = guarded(guard) or self._read(scope)
        peak = self._scope(asked.tensor)
        assert isinstance(guard, Call)
        return Reach(guard, peak, self._mask(peak))

    def restrict(self, scope: Scope) -> Restrict:
        read = self._read(scope)
        found = [op for op in self.view.operators(read.tensor) if op.name == "Softmax"]
        softmax = self.random.choice([*(found or [Op("Softmax", (read.tensor,), (0,))]), None])
        scores = self._scope(softmax.args[0] if softmax else read.tensor)
        start = self._index(traversal_iterators(scores))
        axis = self.random.randrange(len(scores.shape) or 1)
        step, count = self.random.choice((1, 1, 2)), self.random.choice((1, 2, 3, 5))
        return Restrict(read, softmax, axis, scores, self._mask(scores), start, step, count)

    def recount(self, scope: Scope) -> Recount:
        size, counts = len(scope.extents), list[Count]()
        for it in self.some(reduction_iterators(scope)):
            d = self.random.choice((1, 2, 3, it.extent))
            slot = size + 2 * len(counts)
            new = It(slot, max(it.extent // d, 1)), It(slot + 1, d)
            value = bare(new[0]) * self.random.choice((d, d, d, 1)) + bare(new[1])
            counts.append(Count(it, value + self.random.choice((0, 0, 0, 1)), new))
        return Recount(tuple(counts))

    def cover(self, scope: Scope) -> Cover:
        index = self._read(scope).index
        at = [self.random.choice((i, i, i.maximum(0), i.minimum(1), i + 1, -i)) for i in index]
        return Cover(tuple(self.random.sample(at, len(at))))

    def unclip(self, scope: Scope) -> Unclip:
        calls = [part for part in composites(scope.body) if isinstance(part, Call)]
        arg = self._read(scope)
        part = self.random.choice([*calls, Call("relu", (arg,))])
        tensors = self.some([read.tensor for read in reads(scope.body)])
        known = [(tensor, self.random.choice((self._scope(tensor), 1.0))) for tensor in tensors]
        return Unclip(part, tuple(known))

    def copied(self, scope: Scope) -> Match:
        return Match(self._read(scope).tensor)

    def counted_back(self, scope: Scope) -> Match:
        other = self._scope(scope)
        return Match(other, (), (self.recount(other),))

    def same(self, scope: Scope) -> Same:
        """Return the scope with its axes or parts in another order, or any other scope."""
        its = traversal_iterators(scope)
        kind = self.random.choice(("order", "view", "part", "terms", "box", "body", "any"))
        found = Same(self._scope(scope))
        if kind == "order":
            order = self.random.sample(its, len(its))
            inner = scope_over(order, reduction_iterators(scope), scope.body, scope.reducer)
            found = reindexed(scope, inner, tuple(map(bare, order)))
        elif kind == "view":
            inner, outer = self._scope(scope), self.some(reduction_iterators(scope))
            at = tuple(self._index([*its, *outer]) for _ in inner.traversal)
            found = reindexed(scope, inner, at, outer)
        elif kind == "part":
            read = self._read(scope)
            inner = self.random.choice((self._scope(read.tensor), scope_over([], [], read)))
            at = tuple(self._index([*its, *reduction_iterators(scope)]) for _ in inner.traversal)
            found = read_by(scope, read, Read(inner, at))
        elif kind == "terms":
            found = termwise(scope)
        elif kind == "box":
            all_its = self.some([*its, *reduction_iterators(scope)])
            box = {it: sorted(self.random.sample(range(it.extent + 1), 2)) for it in all_its}
            found = bounded(scope, {it: (low, high) for it, (low, high) in box.items()}, 0.0)
        elif kind == "body":
            body = self._another(scope.body)
            found = Same(same_scope(scope, body, reduction_iterators(scope)))
        tensors = self.some(dict.fromkeys(r.tensor for r in reads(scope.body)))
        apart = self.some(reduction_iterators(found.other)) if self.random.random() < 0.3 else ()
        cuts = tuple((it, tuple(self.some(range(1, it.extent)))) for it in apart)
        return Same(found.other, tuple((t, self._scope(t)) for t in tensors), cuts)

    def looked_up(self, scope: Scope) -> Match:
        read = self._read(scope)
        table, gathered = self._scope(read.tensor), self._operator(read.tensor)
        at = tuple(self._index(traversal_iterators(scope)) for _ in table.traversal)
        by_rows = Read(rows(table, gathered.args[-1]), at)
        return Match(Scope(scope.traversal, (), by_rows), ((read.tensor, gathered),))


    def expand(self) -> Expand:
        """Return arguments of the law of expanded forms: for each tensor a random member of its
        e-class, mostly a map, or any scope, or a number."""
        return Expand(self._map, *(self.random.random() < 0.3 for _ in range(2)))

    def _map(self, tensor: Tensor) -> Scope | float | None:
        maps = [scope for scope in self.view.scopes(tensor) if not scope.reduction]
        kind = self.random.choice(("map", "map", "map", "map", "scope", "number", "none"))
        if kind == "map" and maps:
            return self.random.choice(maps)
        if kind == "scope":
            return self._scope(tensor)
        return self.random.choice((0.0, 1.0)) if kind == "number" else None


def saying_steps(random: Random) -> Callable[[str], Any]:
    """Tactics that propose a few random steps for each request, or arguments of the other laws."""

    def tactic(law: str) -> Any:
        def hostile(view: View, row: Sequence[Any]) -> Iterator[Any]:
            proposals = view.once(lambda view, _: Proposals(random, view), "proposals")
            for _ in range(6):
                try:
                    if law in FORM_LAWS and random.random() < 0.8:
                        yield random.choice((proposals.expand(),) * 4 + (Stated(),))
                    else:
                        yield proposals.steps(asked(law, row))
                except EqsynthError:
                    continue  # arguments that can't even be written down

        return hostile

    return tactic


def saying_terms(random: Random) -> Callable[[str], Any]:
    """Tactics that propose random terms of the right type."""

    def tactic(_law: str) -> Any:
        def hostile(view: View, row: Sequence[Any]) -> Iterator[Any]:
            alike = [
                scope for ref in view.refs.values() for scope in view.scopes(ref)
                if scope.type == row[0].type
            ]  # fmt: skip
            for scope in random.sample(alike, min(2, len(alike))):
                yield random.choice((scope, Using(scope, {}), Path(scope)))

        return hostile

    return tactic


class Door:
    """Counts the proposals that were accepted and those that were refused, by law of the
    calculus."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        apply = asking.applied

        def watched(
            view: View, law: str, row: Sequence[Any], said: Any, entry: Entry
        ) -> list[Using]:
            steps = said.steps if isinstance(said, Path) else said
            if not isinstance(steps, tuple):
                steps = (said if isinstance(said, Expand | Stated) else "term",)
            names = ["term" if step == "term" else type(step).__name__ for step in steps]
            try:
                found = apply(view, law, row, said, entry)
            except LawError:
                self.refused.update(names)
                raise
            self.taken.update(names if found else [])
            return found

        monkeypatch.setattr(asking, "applied", watched)


def replace_all(
    monkeypatch: pytest.MonkeyPatch, tactic: Callable[[str], Any], but: frozenset[str] = frozenset()
) -> Door:
    """Replace the tactics of all laws, those of rules of scopes included, but of ``but``."""

    def replaced(laws: Mapping[str, Entry]) -> dict[str, Entry]:
        return {law: e if law in but else replace(e, tactic=tactic(law)) for law, e in laws.items()}

    for law, entry in replaced(LAWS).items():
        monkeypatch.setitem(LAWS, law, entry)
    of_scopes = asking.laws_of
    monkeypatch.setattr(asking, "laws_of", lambda rules: replaced(of_scopes(rules)))
    return Door(monkeypatch)


def saturated(
    name: str, rules: RuleSet = RULES, phases: Sequence[Phase] = DEFAULT_PHASES
) -> None:
    graph = saturate_terms([PROGRAMS[name]()], rules, phases, LIMITS, True)
    assert graph.log is not None
    for error in certify(graph.log, rules).failures:
        raise error
    assert_egraph_consistent(graph)


DEFINE = frozenset({"definition", "view", "reduction"})


def said_at_random(
    monkeypatch: pytest.MonkeyPatch, seed: int, names: Sequence[str], but: frozenset[str] = DEFINE
) -> Door:
    """Saturate programs with random steps. ``saturated`` checks that all members of each e-class
    are equal."""
    door = replace_all(monkeypatch, saying_steps(Random(seed)), but)
    for name in names:
        saturated(name)
    assert sum(door.refused.values()) > sum(door.taken.values()) > 0
    return door


@by_turns
def test_steps_at_random_are_equalities_or_refused(
    turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn saturates two of the programs. Over all turns, every program occurs."""
    assert len(NAMES) < 2 * TURNS
    said_at_random(monkeypatch, turn, [NAMES[(turn + n * TURNS) % len(NAMES)] for n in (0, 1)],
                   DEFINE if turn % 2 else frozenset())  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("name", FORMS)
def test_expanded_forms_by_maps_at_random_are_equal_or_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only definitions come before, since all other tactics are random."""
    door = replace_all(monkeypatch, saying_steps(Random(1)), DEFINE)
    saturated(name, PROOF_RULES, PROOF_PHASES)
    assert door.taken["Expand"] > 20 and door.refused["Expand"] > 20, (door.taken, door.refused)
    assert door.refused["Stated"] > 5


@pytest.mark.rotating
def test_an_expanded_form_needs_members_and_a_law_of_proofs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each condition under which ``answers.applied`` takes an expanded form, at its edge."""
    conditions = Counter[str]()
    apply = asking.applied

    def tried(view: View, law: str, row: Sequence[Any], said: Any, entry: Entry) -> list[Using]:
        if not isinstance(said, Expand):
            return apply(view, law, row, said, entry)
        other = Scope((3,), (), Num(2.0))
        for condition, by, of in (
            ("numerics", said, replace(entry, numerics="cancels")),
            ("numerics", replace(said, cancels=True), replace(entry, numerics="proof")),
            ("hypothesis", replace(said, maps=lambda _: other), entry),
            ("hypothesis", replace(said, maps=lambda _: 2.0), entry),
            ("steps", Stated(), entry),
        ):
            try:
                apply(view, law, row, by, of)
            except LawError as error:
                assert error.condition == condition
                conditions[condition] += 1
        return apply(view, law, row, said, entry)

    monkeypatch.setattr(asking, "applied", tried)
    saturated("softmax", PROOF_RULES, PROOF_PHASES)
    assert all(conditions[one] > 1 for one in ("numerics", "hypothesis", "steps")), conditions


@pytest.mark.slow
def test_each_law_is_taken_and_refused_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    door = said_at_random(monkeypatch, 0, NAMES)
    assert len(door.taken) >= 10, door.taken
    assert sum(door.taken.values()) > 100
    # Each law was given arguments that it has to refuse.
    assert {kind.__name__ for kind in CALCULUS} - {"Least"} <= {*door.refused}


def test_terms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # The tactics of definitions stay, since without definitions there would be no scopes.
    door = replace_all(monkeypatch, saying_terms(Random(0)), DEFINE)
    for name in NAMES[:4]:
        saturated(name)
    # A path without steps ends at the term of the request, so only bare terms are refused.
    assert set(door.refused) == {"term"} and door.refused["term"] > 50
    assert set(door.taken) == {"Define"}


@pytest.mark.rotating
def test_maps_have_to_stand_in_the_e_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the maps of expanded forms aren't looked up, a wrong form is noticed."""
    monkeypatch.setattr(answers, "_is_known", lambda _view, _tensor, _equal: True)
    replace_all(monkeypatch, saying_steps(Random(0)), frozenset(LAWS) - FORM_LAWS)
    with pytest.raises((EquivalenceError, EqsynthError)):
        for name in FORMS:
            saturated(name, PROOF_RULES, PROOF_PHASES)


@pytest.mark.rotating
def test_a_hypothesis_has_to_stand_in_the_e_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """If hypotheses aren't checked, a wrong answer gets into the e-graph and is noticed."""
    monkeypatch.setattr(answers, "_is_known", lambda _view, _tensor, _equal: True)
    replace_all(monkeypatch, saying_steps(Random(0)))
    with pytest.raises((EquivalenceError, EqsynthError)):
        for name in NAMES:
            saturated(name)
