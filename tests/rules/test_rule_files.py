"""Every rule file earns its place: without it, something that it is for is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import eqsynth
from eqsynth.egraph.proving import meet
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.errors import EqsynthError
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.tensor import Op
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules

NUMERICS = ("bitwise", "real", "proof")
LIMITS = Limits(deadline_s=3600.0)
ops = eqsynth.ops


def proved(left: Expr, right: Expr) -> Callable[[RuleSet], bool]:
    """Whether two expressions are proved equal with some rules."""

    def check(rules: RuleSet) -> bool:
        sides = [program_of(side)[0].outputs for side in (left, right)]
        return meet(sides[0], sides[1], rules, LIMITS).proved

    return check


def found(expression: Expr, operator: str) -> Callable[[RuleSet], bool]:
    """Whether an operator is among the members after saturation."""

    def check(rules: RuleSet) -> bool:
        roots = program_of(expression)[0].outputs
        graph = saturate_terms(roots, rules, DEFAULT_PHASES, LIMITS, False)
        members = [m for members in graph.classes.values() for m in members]
        return any(isinstance(m, Op) and m.name == operator for m in members)

    return check


def fired(expression: Expr, rule: str) -> Callable[[RuleSet], bool]:
    """Whether a rule has fired."""

    def check(rules: RuleSet) -> bool:
        roots = program_of(expression)[0].outputs
        return rule in saturate_terms(roots, rules, DEFAULT_PHASES, LIMITS, False).matches

    return check


x = eqsynth.input("x", (4, 6))
w = eqsynth.weight("w", (6, 5))
v = eqsynth.weight("v", (5, 3))
b = eqsynth.weight("b", (5,))
product = eqsynth.scope(lambda i, j: eqsynth.sum(lambda k: x[i, k] * w[k, j], k=6), i=4, j=5)

LOST: dict[str, Callable[[RuleSet], bool]] = {
    "schema.egg": lambda rules: bool(rules.rules),
    "shape.egg": lambda rules: "scope-shape" in rules.names,
    "index.egg": proved(
        eqsynth.scope(lambda i, j: x[i, (2 * j) // 2], i=4, j=6), x
    ),
    "scalar.egg": proved(
        eqsynth.scope(lambda i: ops.relu(ops.relu(x[i, 0])), i=4),
        eqsynth.scope(lambda i: ops.relu(x[i, 0]), i=4),
    ),
    "elementwise.egg": proved(
        ops.relu(x), eqsynth.scope(lambda i, j: ops.relu(x[i, j]), i=4, j=6)
    ),
    "operators.egg": proved(x @ w, product),
    "views.egg": fired(ops.permute(x, (1, 0)), "permute-definition"),
    "derive.egg": proved(ops.permute(ops.permute(x, (1, 0)), (1, 0)), x),
    "correlate.egg": fired(
        ops.conv2d(eqsynth.input("z", (1, 16, 4, 4)), eqsynth.weight("u", (16, 16, 3, 3))),
        "correlate",
    ),
    "contract.egg": fired((x @ w) @ v, "factor"),
    "reduce.egg": proved(
        eqsynth.scope(lambda n: eqsynth.sum(lambda i, j: x[n, 3 * i + j], i=2, j=3), n=4),
        ops.sum(x, 1),
    ),
    "maps.egg": proved(ops.amax(ops.relu(x), 1), ops.relu(ops.amax(x, 1))),
    "linear.egg": fired(ops.sum(x @ w + b, 0), "term-split"),
    "expand.egg": proved(ops.silu(x) - ops.silu(-x), x),
    "match.egg": found(product, "Matmul"),
    "merge.egg": fired(ops.cat([x @ w, x @ eqsynth.weight("u", (6, 2))], 1), "merge-matmuls"),
    "attention.egg": fired(
        ops.softmax(x @ w, 1) @ eqsynth.input("u", (5, 2)), "match-attention-unscaled"
    ),
    "epilogue.egg": found(ops.relu(x @ w + b), "FusedMatmul"),
    "views-match.egg": found(eqsynth.scope(lambda i, j: x[i, (j + 1) % 6], i=4, j=6), "Shift"),
    "simplify.egg": fired(ops.reshape(ops.reshape(x, (24,)), (6, 4)), "reshape-of-reshape"),
}


def test_every_file_is_here() -> None:
    assert set(LOST) == set(DEFAULT_FILES)


@pytest.mark.rotating
@pytest.mark.parametrize("file", DEFAULT_FILES)
def test_with_all_files_it_holds(file: str) -> None:
    assert LOST[file](load_rules().select(numerics=NUMERICS))


@pytest.mark.rotating
@pytest.mark.parametrize("file", DEFAULT_FILES)
def test_without_the_file_it_is_lost(file: str) -> None:
    try:
        rest = load_rules([name for name in DEFAULT_FILES if name != file])
        rest = rest.select(numerics=NUMERICS if file == "expand.egg" else NUMERICS[:2])
        held = LOST[file](rest)
    except (EqsynthError, KeyError):
        # The others can't be loaded or run without what it declares.
        held = False
    assert not held
