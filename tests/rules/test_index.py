"""index.egg on every small expression: values stay, it ends, a second time changes nothing.

Small: two iterators and a few numbers under + - * // % min max, negatives included, all points of
their ranges. Large extents are drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.egraph.session import Session
from eqsynth.errors import EqsynthError
from eqsynth.ir.index import FloorDiv, Index, It, Max, Min, Mod
from eqsynth.ir.scalar import Value
from eqsynth.ir.tensor import Scope
from eqsynth.rules import load_rules, load_text
from tests.terms import it, times

RULES = load_rules(["schema.egg", "shape.egg", "index.egg"])
EXTENTS = (3, 4)
FACTORS, DIVISORS, BOUNDS = (-2, -1, 2, 4), (2, 3, 4, 12), (-1, 0, 2, 5)


def leaves() -> list[Index]:
    return [it(0, EXTENTS[0]), it(1, EXTENTS[1]), Index(1), Index(-2), Index(3)]


def larger(x: Index) -> Iterator[Index]:
    """Every expression with one more operation by a number."""
    yield from (x * c for c in FACTORS)
    yield from (x // m for m in DIVISORS)
    yield from (x % m for m in DIVISORS)
    yield from (x.minimum(c) for c in BOUNDS)
    yield from (x.maximum(c) for c in BOUNDS)


def expressions(depth: int) -> list[Index]:
    """All expressions over the leaves of at most so many operations, sums of two among them."""
    levels = [leaves()]
    for _ in range(depth):
        below = [x for level in levels for x in level]
        new = [y for x in levels[-1] for y in larger(x)]
        new += [x + y for x in levels[-1] for y in below[: len(leaves())]]
        if len(levels) == 1:
            new += [x - y for x, y in itertools.product(below, repeat=2)]
        levels.append(list(dict.fromkeys(new)))
    return list(dict.fromkeys(x for level in levels for x in level))


def simplified(indices: Sequence[Index], extents: tuple[int, ...]) -> list[Index]:
    """The smallest members of the indices' classes, after the rules have nothing to add."""
    with closing(Session(RULES, log_matches=False)) as session:
        roots = session.add([Scope(extents, (), Value(index)) for index in indices])
        session.engine.analyse()
        for _ in range(40):
            changed, over = session.round("index", 1 << 20)
            assert not over
            if not changed:
                break
        else:
            raise AssertionError("the rules don't end")
        view = session.view()
        found = []
        for root in roots:
            (scope,) = view.scopes(view.refs[view.by_handle(root)])
            assert isinstance(scope.body, Value)
            found.append(scope.body.index)
        return found


def values(index: Index, extents: tuple[int, ...]) -> Any:
    grid = np.meshgrid(*map(np.arange, extents), indexing="ij", sparse=True)
    return np.broadcast_to(index.evaluate(dict(enumerate(grid))), extents)


def size(index: Index) -> int:
    """Operations in an index."""
    return sum(
        (c != 1) + (0 if isinstance(atom, It) else 1 + size(atom.value))
        for atom, c in index.terms
    ) + max(len(index.terms) - 1 + bool(index.const), 0)


def check(indices: Sequence[Index], extents: tuple[int, ...]) -> list[Index]:
    once = simplified(indices, extents)
    for index, result in zip(indices, once, strict=True):
        np.testing.assert_array_equal(
            values(result, extents), values(index, extents), err_msg=f"{index} became {result}"
        )
        assert size(result) <= size(index), (index, result)
    return once


SMALL = expressions(2)
STEP = 250


@pytest.mark.rotating
@pytest.mark.parametrize("first", range(0, len(SMALL), STEP))
def test_every_small_expression_keeps_its_value(first: int) -> None:
    part = SMALL[first : first + STEP]
    once = check(part, EXTENTS)
    assert check(once, EXTENTS) == once
    constant = [x for x in part if values(x, EXTENTS).min() == values(x, EXTENTS).max()]
    known = [x for x, y in zip(part, once, strict=True) if not y.terms]
    assert set(known) <= set(constant)


def test_the_small_expressions_hold_every_operation() -> None:
    kinds = {type(atom) for x in SMALL for atom, _ in x.terms}
    assert kinds == {It, FloorDiv, Mod, Min, Max} and len(SMALL) > 1400


@pytest.mark.rotating
@pytest.mark.parametrize("batches", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_sample_of_larger_expressions_keeps_its_value(batches: int) -> None:
    rng = np.random.default_rng(batches)
    three = [z for x in SMALL for y in larger(x) for z in (y, y + it(1, EXTENTS[1]) * 4)]
    for part in np.array_split(rng.permutation(len(three))[: 300 * batches], batches):
        some = [three[n] for n in part]
        once = check(some, EXTENTS)
        assert check(once, EXTENTS) == once


@st.composite
def large(draw: st.DrawFn) -> tuple[list[Index], tuple[int, ...]]:
    """Expressions over large extents, divisors that divide them and others, large constants."""
    extents = tuple(draw(st.integers(1, 10**4)) for _ in range(2))

    def one(depth: int) -> Index:
        if depth == 0:
            slot = draw(st.integers(0, 1))
            return it(slot, extents[slot])
        x = one(depth - 1)
        n = draw(st.one_of(st.integers(1, 60), st.sampled_from([*extents, 64, 4096])))
        match draw(st.sampled_from(["add", "sub", "mul", "const", "div", "mod", "min", "max"])):
            case "add":
                return x * n + one(0)
            case "sub":
                return x - one(depth - 1)
            case "mul":
                return x * draw(st.integers(-50, 50))
            case "const":
                return x + draw(st.integers(-(10**4), 10**4))
            case "div":
                return x // n
            case "mod":
                return x % n
            case "min":
                return x.minimum(draw(st.integers(-(10**4), 10**4)))
        return x.maximum(draw(st.integers(-(10**4), 10**4)))

    return [one(draw(st.integers(1, 4))) for _ in range(2)], extents


@pytest.mark.rotating
@settings(max_examples=times(0.4))
@given(large())
def test_large_expressions_keep_their_value(case: tuple[list[Index], tuple[int, ...]]) -> None:
    indices, extents = case
    once = simplified(indices, extents)
    points = np.random.default_rng(0)
    at = {slot: points.integers(0, extent, 2000) for slot, extent in enumerate(extents)}
    for index, result in zip(indices, once, strict=True):
        np.testing.assert_array_equal(
            np.broadcast_to(result.evaluate(at), 2000), np.broadcast_to(index.evaluate(at), 2000)
        )
    assert simplified(once, extents) == once


def test_what_a_reader_expects_is_found() -> None:
    """One line a law: what it becomes."""
    i, j = it(0, 4), it(1, 6)
    examples: list[tuple[Index, Index]] = [
        ((6 * i + j) // 6, i),
        ((6 * i + j) % 6, j),
        ((6 * i + j + 6) // 6, i + 1),
        ((j - 9) // 2 * 2 + (j - 9) % 2, j - 9),
        (j // 2 // 3, Index(0)),
        (j.minimum(5), j),
        (j.minimum(-1), Index(-1)),
        ((j + 1).maximum(1), j + 1),
        (j.minimum(3).minimum(4), j.minimum(3)),
        (j.minimum(3).maximum(4), Index(4)),
        (j.maximum(2).maximum(4), j.maximum(4)),
        ((2 * j).minimum(6) // 2, j.minimum(3)),
        ((2 * j).minimum(6) % 2, Index(0)),
        ((6 * i + j.minimum(4)) // 6, i),
        ((6 * i + j.minimum(4)) % 6, j.minimum(4)),
    ]
    found = simplified([index for index, _ in examples], (4, 6))
    assert found == [expected for _, expected in examples]


def test_terms_that_cancel_have_an_end() -> None:
    """2*i is 4*i - 2*i, and so 8*i - 6*i, ..: only the least form is taken apart."""
    i, j = it(0, EXTENTS[0]), it(1, EXTENTS[1])
    check([(2 * j - 1) // 2, 4 * j - 2 * (j % 12)], EXTENTS)
    small = ((i % 3).minimum(2)).maximum(-1)
    less = (i // 2 // 12).minimum(-1)
    none = [2 * j % 2, i % 12 // 12 % 4, -(2 * j).maximum(0)]
    check([none[0], *(4 * j + x for x in (*none[1:], less, small))], EXTENTS)


def test_the_check_sees_a_wrong_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: egglog's own division truncates below zero."""
    wrong = """\
;; Status validated
;; min(x, c) // m = min(x // m, c // m), wrong below zero
(rewrite (IDiv (IMin x c) m) (IMin (IDiv x m) (/ c m)) :ruleset index :name "min-wrong")
"""
    rules = load_text(wrong, after=["schema.egg", "shape.egg", "index.egg"])
    monkeypatch.setitem(globals(), "RULES", rules)
    with pytest.raises((AssertionError, EqsynthError)):
        check([(it(1, 4) - 5).minimum(-3) // 2], EXTENTS)
