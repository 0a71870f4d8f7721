"""Explanations: two terms have one exactly if a brute-force congruence closure finds them equal,
and each explanation can be replayed.

The closure shares no code with the proof forest: its terms are nested tuples, and it tries all
pairs.
"""

import dataclasses
import doctest
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsynth.egraph import chains, proof
from eqsynth.egraph.chains import Step, chain, replay
from eqsynth.egraph.proof import Justification, ProofForest
from eqsynth.egraph.terms import Term, TermBank
from eqsynth.errors import EquivalenceError, ExplanationTooLong

Tree = tuple[Any, ...]  # (head, child, ...)

ARITY = {"a": 0, "b": 0, "c": 0, "f": 1, "g": 1, "h": 2}


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[tuple[str, tuple[int, ...]]], list[tuple[int, int]], int]:
    """Draw terms over a small signature (a child is the number of an earlier term), the pairs to
    unite, and how many terms are added after the unions."""
    terms: list[tuple[str, tuple[int, ...]]] = [("a", ()), ("b", ()), ("c", ())]
    for _ in range(draw(st.integers(3, 14))):
        head = draw(st.sampled_from("fgh"))
        children = [draw(st.integers(0, len(terms) - 1)) for _ in range(ARITY[head])]
        terms.append((head, tuple(children)))
    late = draw(st.integers(0, len(terms) - 1))
    ends = st.integers(0, len(terms) - 1)
    return terms, draw(st.lists(st.tuples(ends, ends), min_size=1, max_size=9)), late


def tree(bank: TermBank, term: Term) -> Tree:
    node = bank[term]
    return (node.head, *(tree(bank, child) for child in node.children))


def replaced(whole: Tree, old: Tree, new: Tree) -> Tree:
    if whole == old:
        return new
    return (whole[0], *(replaced(child, old, new) for child in whole[1:]))


def subtrees(whole: Tree) -> set[Tree]:
    return {whole}.union(*(subtrees(child) for child in whole[1:]))


def closure(terms: list[Tree], equalities: list[tuple[Tree, Tree]]) -> dict[Tree, Tree]:
    """The class of each term: terms that are logged as equal or are congruent are merged until
    nothing changes."""
    universe = sorted(set().union(*map(subtrees, terms)), key=repr)
    name = {t: t for t in universe}

    def merge(a: Tree, b: Tree) -> bool:
        gone, kept = name[a], name[b]
        for t in universe:
            if name[t] == gone:
                name[t] = kept
        return gone != kept

    for a, b in equalities:
        merge(a, b)
    changed = True
    while changed:
        changed = False
        for a in universe:
            for b in universe:
                congruent = (a[0], *(name[t] for t in a[1:])) == (b[0], *(name[t] for t in b[1:]))
                changed |= congruent and merge(a, b)
    return name


@given(logs())
def test_explains_exactly_what_is_equal(
    log: tuple[list[tuple[str, tuple[int, ...]]], list[tuple[int, int]], int],
) -> None:
    terms, unions, late = log
    forest = ProofForest()
    ids: list[Term] = []
    for head, children in terms:
        ids.append(forest.bank.add(head, [ids[child] for child in children]))
    for term in ids[:late]:  # the others enter the closure when a union or a question names them
        forest.add(forest.bank[term].head, forest.bank[term].children)
    logged: dict[str, tuple[Tree, Tree]] = {}
    for i, (a, b) in enumerate(unions):
        forest.union(ids[a], ids[b], Justification(f"r{i}"))
        logged[f"r{i}"] = tree(forest.bank, ids[a]), tree(forest.bank, ids[b])
    name = closure([tree(forest.bank, t) for t in ids], list(logged.values()))

    for a in ids:
        for b in ids:
            equal = name[tree(forest.bank, a)] == name[tree(forest.bank, b)]
            assert forest.equal(a, b) == equal
            if not equal:
                with pytest.raises(EquivalenceError):
                    chain(forest, a, b)
                with pytest.raises(EquivalenceError):
                    forest.lemmas(a, b)
                continue
            lemmas = forest.lemmas(a, b)
            forest.verify(lemmas)
            assert (lemmas[-1].pair if lemmas else (a, a)) == (a, b)
            steps = chain(forest, a, b)
            replay(forest, steps)
            wholes = [a, *(step.after for step in steps)]
            assert wholes[-1] == b
            assert len(set(wholes)) == len(wholes)
            assert [step.before for step in steps] == wholes[:-1]
            for step in steps:
                before, after, old, new = (
                    tree(forest.bank, t) for t in (step.before, step.after, *step.position)
                )
                assert logged[step.rule] == ((old, new) if step.forward else (new, old))
                assert replaced(before, old, new) == after or replaced(after, new, old) == before


def explained(forest: ProofForest, a: Term, b: Term) -> list[Step]:
    steps = chain(forest, a, b)
    replay(forest, steps)
    assert (steps[0].before, steps[-1].after) == (a, b)
    return steps


def rules(steps: list[Step]) -> list[str]:
    return [step.rule for step in steps]


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(proof).failed == 0 and doctest.testmod(chains).failed == 0


def test_one_term_needs_no_step() -> None:
    forest = ProofForest()
    assert chain(forest, forest.add("a"), forest.add("a")) == []


def test_a_step_says_in_which_direction_the_rule_was_read() -> None:
    forest = ProofForest()
    a, b = forest.add("a"), forest.add("b")
    forest.union(a, b, Justification("a-is-b", "definition"))
    assert explained(forest, a, b) == [Step(a, b, "a-is-b", True, (a, b))]
    assert explained(forest, b, a) == [Step(b, a, "a-is-b", False, (b, a))]


def test_one_subterm_may_become_two() -> None:
    """h(a, a) = h(b, c) needs different equalities for the two occurrences of a."""
    forest = ProofForest()
    a, b, c = (forest.add(head) for head in "abc")
    forest.union(a, b, Justification("a-is-b"))
    forest.union(a, c, Justification("a-is-c"))
    steps = explained(forest, forest.add("h", (a, a)), forest.add("h", (b, c)))
    assert sorted(rules(steps)) == ["a-is-b", "a-is-c"]


def test_a_term_inside_its_equal() -> None:
    forest = ProofForest()
    a = forest.add("a")
    ga = forest.add("g", (a,))
    forest.union(a, ga, Justification("a-is-ga"))
    assert explained(forest, forest.add("h", (a, ga)), forest.add("h", (ga, a)))


def test_where_some_occurrences_stay_all_are_replaced_and_some_restored() -> None:
    forest = ProofForest()
    a, b = forest.add("a"), forest.add("b")
    forest.union(a, b, Justification("a-is-b"))
    aab, bbb, bab = (forest.add("k", args) for args in ((a, a, b), (b, b, b), (b, a, b)))
    assert explained(forest, aab, bab) == [
        Step(aab, bbb, "a-is-b", True, (a, b)),
        Step(bbb, bab, "a-is-b", False, (b, a)),
    ]


def test_some_occurrences_stay_of_a_term_inside_its_equal() -> None:
    """k(a, a, g(a)) = k(g(a), a, g(a)): g(a) is replaced by a first. Replacing a by g(a) first
    would never reach the other term."""
    forest = ProofForest()
    a = forest.add("a")
    ga = forest.add("g", (a,))
    forest.union(a, ga, Justification("a-is-ga"))
    start, middle, end = (forest.add("k", x) for x in ((a, a, ga), (a, a, a), (ga, a, ga)))
    assert explained(forest, start, end) == [
        Step(start, middle, "a-is-ga", False, (ga, a)),
        Step(middle, end, "a-is-ga", True, (a, ga)),
    ]


def test_replacing_makes_new_occurrences() -> None:
    """g(b) = b is applied to g(g(g(b))), and the other arguments have to stay the same."""
    forest = ProofForest()
    towers = [forest.add("b")]
    for _ in range(3):
        towers.append(forest.add("g", (towers[-1],)))
    forest.union(towers[1], towers[0], Justification("gb-is-b"))
    others = (towers[1], towers[0], towers[2])
    start = forest.add("k", (towers[3], *others))
    steps = explained(forest, start, forest.add("k", (towers[2], *others)))
    assert [step.forward for step in steps] == [True, True, True, False, False]


def test_an_equality_is_not_explained_by_itself() -> None:
    """a = f(a), b = f(b), a = b. f(a) = f(b) follows from a = b by congruence, so a = b must not be
    explained by f(a) = f(b)."""
    forest = ProofForest()
    a, b = forest.add("a"), forest.add("b")
    fa, fb = forest.add("f", (a,)), forest.add("f", (b,))
    forest.union(a, fa, Justification("a-is-fa"))
    forest.union(b, fb, Justification("b-is-fb"))
    forest.union(a, b, Justification("a-is-b"))
    assert rules(explained(forest, fa, fb)) == ["a-is-b"]
    assert rules(explained(forest, a, b)) == ["a-is-b"]


def test_a_later_shortcut_is_taken() -> None:
    forest = ProofForest()
    chain = [forest.add(i) for i in range(50)]
    for a, b in zip(chain, chain[1:], strict=False):
        forest.union(a, b, Justification("next"))
    forest.union(chain[0], chain[-1], Justification("shortcut"))
    ends = forest.add("f", (chain[0],)), forest.add("f", (chain[-1],))
    assert rules(explained(forest, *ends)) == ["shortcut"]


def test_explanations_follow_the_log() -> None:
    """An explanation isn't reused if a later equality gives a shorter one."""
    forest = ProofForest()
    a, b, c = (forest.add(head) for head in "abc")
    forest.union(a, b, Justification("a-is-b"))
    forest.union(b, c, Justification("b-is-c"))
    assert rules(explained(forest, a, c)) == ["a-is-b", "b-is-c"]
    forest.union(a, c, Justification("a-is-c"))
    assert rules(explained(forest, a, c)) == ["a-is-c"]


def test_neighbouring_congruences_are_one() -> None:
    """The forest has f(b) = f(a) = f(c) by congruence; the explanation is the shorter
    f(b) = f(c)."""
    forest = ProofForest()
    a, b, c = (forest.add(head) for head in "abc")
    _, fb, fc = (forest.add("f", (term,)) for term in (a, b, c))
    forest.union(a, b, Justification("a-is-b"))
    forest.union(b, c, Justification("b-is-c"))
    forest.union(a, c, Justification("a-is-c"))
    assert rules(explained(forest, fb, fc)) == ["b-is-c"]


@given(st.integers(0, 5), st.lists(st.integers(0, 5), max_size=20))
def test_no_whole_term_is_visited_twice(start: int, walk: list[int]) -> None:
    wholes = [start, *walk]
    steps = [Step(a, b, "r", True, (a, b)) for a, b in zip(wholes, walk, strict=False)]
    kept = chains._without_detours(start, steps)
    assert all(step in steps for step in kept)
    assert [step.before for step in kept] == [start, *(step.after for step in kept)][:-1]
    visited = [start, *(step.after for step in kept)]
    assert len(set(visited)) == len(visited) and visited[-1] == wholes[-1]


@pytest.mark.rotating
def test_a_long_chain() -> None:
    forest = ProofForest()
    count = 5_000
    chain = [forest.add(i) for i in range(count + 1)]
    above = [forest.add("f", (term,)) for term in chain]
    for i in sorted(range(count), key=lambda i: (i * 7919) % count):  # in a scattered order
        forest.union(chain[i], chain[i + 1], Justification(f"r{i}"))
    assert rules(explained(forest, chain[0], chain[-1])) == [f"r{i}" for i in range(count)]
    assert rules(explained(forest, above[0], above[-1])) == [f"r{i}" for i in range(count)]


@pytest.mark.rotating
def test_a_deep_term() -> None:
    forest = ProofForest()
    a, b = forest.add("a"), forest.add("b")
    deep = []
    for term in (a, b):
        for _ in range(20_000):
            term = forest.add("f", (term,))
        deep.append(term)
    forest.union(a, b, Justification("a-is-b"))
    assert rules(explained(forest, *deep)) == ["a-is-b"]


def test_a_shared_subterm_is_rewritten_once() -> None:
    """A DAG of depth 60 whose tree has 2^60 leaves."""
    forest = ProofForest()
    a, b = forest.add("a"), forest.add("b")
    forest.union(a, b, Justification("a-is-b"))
    for _ in range(60):
        a = forest.add("h", (a, forest.add("g", (a,))))
        b = forest.add("h", (b, forest.add("g", (b,))))
    assert rules(explained(forest, a, b)) == ["a-is-b"]


@pytest.mark.parametrize("logged_on", ["old", "new", "both"])
def test_layers_used_twice_take_two_steps_each(logged_on: str) -> None:
    """Each of 60 layers is read by p and by q, and a rule rewrites each: 2 * 60 + 1 steps in all,
    not 2^60."""
    forest = ProofForest()
    old, new = forest.add("a"), forest.add("b")
    forest.union(old, new, Justification("a-is-b"))
    for _ in range(60):
        left = new if logged_on == "new" else old
        right = old if logged_on == "old" else new
        for head, argument in (("p", left), ("q", right)):
            before, after = forest.add(head, (argument,)), forest.add(head * 2, (argument,))
            forest.union(before, after, Justification(head))
        old = forest.add("h", (forest.add("p", (old,)), forest.add("q", (old,))))
        new = forest.add("h", (forest.add("pp", (new,)), forest.add("qq", (new,))))
    assert len(explained(forest, old, new)) == 121


def test_too_long_is_an_error_not_a_hang() -> None:
    forest = ProofForest()
    terms = [forest.add(i) for i in range(10)]
    for a, b in zip(terms, terms[1:], strict=False):
        forest.union(a, b, Justification("next"))
    assert len(chain(forest, terms[0], terms[-1], max_steps=9)) == 9
    with pytest.raises(ExplanationTooLong) as error:
        chain(forest, terms[0], terms[-1], max_steps=8)
    assert error.value.expected == "at most max_steps=8"


def recurrence(depth: int) -> tuple[ProofForest, Term, Term]:
    """A log of ``depth`` levels in which f(x) = g(x), g(y) = h(y) and h(x) = k(x) are given. So
    f(x) = k(y) needs x = y, which is proved in the same way one level below, several times."""
    forest = ProofForest()
    left, right = forest.add("a"), forest.add("b")
    forest.union(left, right, Justification("a-is-b"))
    for level in range(depth):
        names = [(kind, level) for kind in "fghk"]
        pairs = [(names[0], left, names[1], left), (names[1], right, names[2], right)]
        pairs.append((names[2], left, names[3], left))
        for head, argument, other, same in pairs:
            before, after = forest.add(head, (argument,)), forest.add(other, (same,))
            forest.union(before, after, Justification(f"{head}-is-{other}"))
        left, right = forest.add(names[0], (left,)), forest.add(names[3], (right,))
    return forest, left, right


@pytest.mark.rotating
def test_lemmas_are_linear_where_the_chain_is_exponential() -> None:
    steps, lemmas = [], []
    for depth in (2, 3, 4):
        forest, left, right = recurrence(depth)
        steps.append(len(explained(forest, left, right)))
        lemmas.append(len(forest.lemmas(left, right)))
    assert steps[2] > 2 * steps[1] > 4 * steps[0]
    assert lemmas[2] - lemmas[1] == lemmas[1] - lemmas[0]
    forest, left, right = recurrence(60)
    with pytest.raises(ExplanationTooLong):
        chain(forest, left, right, max_steps=1_000)
    proof = forest.lemmas(left, right)
    forest.verify(proof)
    assert proof[-1].pair == (left, right)


def test_one_term_needs_no_lemma() -> None:
    forest = ProofForest()
    assert forest.lemmas(forest.add("a"), forest.add("a")) == []


@pytest.mark.parametrize("gone", ["a lemma", "a link", "a rule"])
def test_damaged_lemmas_are_refused(gone: str) -> None:
    forest, left, right = recurrence(2)
    lemmas = forest.lemmas(left, right)
    if gone == "a lemma":
        del lemmas[0]
    elif gone == "a link":
        lemmas[-1] = replace(lemmas[-1], path=lemmas[-1].path[:-1])
    else:
        rules = [n for n, lemma in enumerate(lemmas) if lemma.path[0].edge.justification]
        segment = lemmas[rules[0]].path[0]
        other = replace(segment, edge=replace(segment.edge, justification=Justification("other")))
        lemmas[rules[0]] = replace(lemmas[rules[0]], path=(other, *lemmas[rules[0]].path[1:]))
    with pytest.raises(EquivalenceError, match="does not hold"):
        forest.verify(lemmas)


def test_a_child_must_be_in_the_bank() -> None:
    with pytest.raises(IndexError):
        TermBank().add("f", (0,))


def chain_with_context() -> tuple[ProofForest, list[Step]]:
    """h(a, a) -> h(b, b) -> h(c, c)."""
    forest = ProofForest()
    a, b, c = (forest.add(head) for head in "abc")
    forest.union(a, b, Justification("a-is-b"))
    forest.union(c, b, Justification("c-is-b"))
    steps = explained(forest, forest.add("h", (a, a)), forest.add("h", (c, c)))
    assert len(steps) == 2
    return forest, steps


@pytest.mark.parametrize(
    "damage",
    [
        lambda bank, s: [s[1], s[0]],
        lambda bank, s: [dataclasses.replace(s[0], rule="c-is-b"), s[1]],
        lambda bank, s: [s[0], dataclasses.replace(s[1], forward=True)],
        lambda bank, s: [dataclasses.replace(s[0], position=s[0].position[::-1]), s[1]],
        lambda bank, s: [dataclasses.replace(s[0], after=bank.add("h", s[1].position)), s[1]],
        lambda bank, s: [s[0], dataclasses.replace(s[1], after=s[1].before)],
        # Twice b for a, but in one place only and beside something else.
        lambda bank, s: [
            dataclasses.replace(
                s[0], after=bank.add("h", (s[0].position[1], bank.add("z"))), before=s[0].before
            )
        ],
        # One of two occurrences, and one was there before: an everywhere in neither direction.
        lambda bank, s: [
            dataclasses.replace(
                s[0],
                before=bank.add("k", (s[0].position[0], *s[0].position)),
                after=bank.add("k", (s[0].position[1], *s[0].position)),
            )
        ],
    ],
    ids=["order", "rule", "forward", "position", "unchained", "idle", "unrelated", "somewhere"],
)
def test_replay_refuses_a_damaged_explanation(damage: Any) -> None:
    forest, steps = chain_with_context()
    replay(forest, steps)
    with pytest.raises(EquivalenceError):
        replay(forest, damage(forest.bank, steps))


def test_replay_asks_the_check_about_each_step() -> None:
    forest, steps = chain_with_context()
    seen: list[Step] = []
    replay(forest, steps, lambda step: not seen.append(step))  # type: ignore[func-returns-value]
    assert seen == steps
    with pytest.raises(EquivalenceError) as error:
        replay(forest, steps, lambda step: step.rule != "c-is-b")
    assert error.value.where == "step 1, rule 'c-is-b'"
