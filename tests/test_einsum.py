"""Any einsum's contraction order, against an oracle that isn't ours: opt_einsum's optimal path.

FLOPs by opt_einsum's own convention: a product over n points costs n, a sum of products 2 n.
"""

from __future__ import annotations

import math
import random

import opt_einsum
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsynth
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.frontend.expression import program_of
from eqsynth.frontend.ops import einsum
from eqsynth.rules import load_rules
from eqsynth.testing import assert_egraph_consistent
from tests.egraph.programs import least_flops
from tests.terms import times
from tests.turns import in_rare_turns

RULES = load_rules().select()

# (equation, extents): what papers and libraries show.
PUBLISHED = {
    "chain": ("ab,bc,cd,de->ae", {"a": 10, "b": 80, "c": 20, "d": 50, "e": 3}),
    "tensor-train": (
        "apb,bqc,crd,dse->pqrs",
        dict(zip("abcdepqrs", [1, 4, 4, 4, 1, 6, 5, 6, 5], strict=True)),
    ),
    "tucker": ("pqr,ap,bq,cr->abc", dict(zip("pqrabc", [3, 4, 5, 12, 10, 8], strict=True))),
    "mttkrp": ("ijk,jr,kr->ir", dict(zip("ijkr", [9, 8, 7, 4], strict=True))),
    "bilinear": ("bi,oij,bj->bo", dict(zip("biojk", [6, 8, 5, 9, 7], strict=True))),
    "attention": ("bhqd,bhkd,bhkv->bhqv", dict(zip("bhqdkv", [1, 2, 16, 4, 16, 4], strict=True))),
    "four-index-transform": (
        "pi,qj,rk,sl,ijkl->pqrs",
        dict(zip("pqrsijkl", [3, 3, 3, 3, 6, 6, 6, 6], strict=True)),
    ),
    "ladder": ("ab,bc,de,ef,bg,ge->acdf", dict(zip("abcdefg", [3, 5, 4, 3, 5, 4, 6], strict=True))),
    "star": ("ax,bx,cx,dx->abcd", dict(zip("abcdx", [3, 4, 5, 3, 7], strict=True))),
    "trace-of-products": ("ab,bc,ca->", dict(zip("abc", [8, 9, 7], strict=True))),
}


# Diagonals, parts that share nothing, one index in many operands, operands that are summed alone.
OTHERS = (
    "ii,ij->j", "iij,jk->ik", "aab,bcc->ac", "ab,cd->abcd", "ab,cd,ef->", "ab,bc,de,ef->acdf",
    "a,b,c,d->abcd", "a,a,a,a->a", "ab,ab,ab->ab", "abc,abd,abe->cde", "ab,cb,db,eb->",
    "ij,ij,jk,kl->", "ijk,ilm,njm,nlk,abc->n",
)  # fmt: skip


def saturated(equation: str, extents: dict[str, int]) -> EGraph:
    inputs = equation.split("->")[0].split(",")
    operands = [
        eqsynth.input(f"x{n}", tuple(extents[letter] for letter in letters))
        for n, letters in enumerate(inputs)
    ]
    program, _ = program_of(einsum(equation, *operands))
    return saturate_terms(program.outputs, RULES, DEFAULT_PHASES, Limits(deadline_s=900.0), False)


def optimal_flops(equation: str, extents: dict[str, int]) -> float:
    shapes = [[extents[letter] for letter in part] for part in equation.split("->")[0].split(",")]
    _, info = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="optimal")
    return float(info.opt_cost)


def check(equation: str, extents: dict[str, int]) -> EGraph:
    """Of up to seven operands the best order is found. Of eight the e-graph may end at its growth,
    and the order it has then costs up to three times as much."""
    graph = saturated(equation, extents)
    ended = graph.stop == "growth" and equation.count(",") > 6
    assert ended or graph.stop == "saturated"
    ours, theirs = least_flops(graph), optimal_flops(equation, extents)
    told = f"{equation} {extents}: {ours} FLOPs, opt_einsum {theirs}"
    assert ours <= (3 if ended else 1) * theirs, told
    return graph


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    """Two to five operands, drawn from a seed: shrinking would be to no purpose."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    return random_einsum(rng, rng.randint(2, 5))


def random_einsum(rng: random.Random, count: int) -> tuple[str, dict[str, int]]:
    """A connected einsum of so many operands, and the extents of its letters."""
    letters = "abcdefghijklmno"
    parts: list[set[str]] = [set() for _ in range(count)]
    used = 0
    for n in range(1, count):
        for part in (parts[n], parts[rng.randrange(n)]):
            part.add(letters[used])
        used += 1
    for _ in range(rng.randint(1, 3)):
        for part in rng.sample(parts, rng.choice([1, 1, 2, min(3, count)])):
            part.add(letters[used])
        used += 1
    for _ in range(rng.randint(0, 2)):
        parts[rng.randrange(count)].add(letters[rng.randrange(used)])
    extents = {letter: rng.randint(2, 9) for letter in letters[:used]}
    out = rng.sample(letters[:used], rng.randint(0, min(4, used)))
    inputs = ["".join(rng.sample(sorted(part), len(part))) for part in parts]
    return ",".join(inputs) + "->" + "".join(out), extents


@pytest.mark.rotating
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_einsums_cost_no_more_than_the_optimal_path(name: str) -> None:
    graph = check(*PUBLISHED[name])
    if math.prod(PUBLISHED[name][1].values()) < 1 << 20:
        assert_egraph_consistent(graph)


@pytest.mark.rotating
@pytest.mark.parametrize("equation", OTHERS)
def test_other_kinds_of_einsum_cost_no_more_either(equation: str) -> None:
    letters = sorted(set(equation) - set(",->"))
    graph = check(equation, {letter: 3 + n % 4 for n, letter in enumerate(letters)})
    assert_egraph_consistent(graph)


@in_rare_turns
@settings(max_examples=times(0.16), deadline=None)
@given(equations())
def test_random_einsums_cost_no_more_than_the_optimal_path(
    drawn: tuple[str, dict[str, int]],
) -> None:
    check(*drawn)


# Operands, and a seed for `random_einsum`: some of six operands in every run, up to eight slowly.
SIX = [(6, seed) for seed in range(3)]
LONG = [(6, seed) for seed in range(3, 8)] + [(n, seed) for n in (7, 8) for seed in range(4)]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("count", "seed"), [*SIX, *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)]
)
def test_long_einsums_cost_no_more_than_the_optimal_path(count: int, seed: int) -> None:
    """Each operand more doubles the connected subsets, and with them the e-graph."""
    graph = check(*random_einsum(random.Random(1000 * count + seed), count))
    assert graph.enodes < 2500 * 3 ** (count - 6)
