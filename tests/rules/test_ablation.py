"""Each rule earns its place: what is found with it isn't found without it.

A row asks about a small program, with all rules and with all but one: which equal program is the
cheapest, or whether two programs are equal. Cheapest is meant on a device that the row names: by
FLOPs, by the estimate of a nominal machine, or where one operator is much faster than everything
else. The last is what EinNet's derivations are for, and any library with one good kernel.

Rewrites of indices and scalars are asked in another way: some equality that the rule states isn't
stated by the rest of its ruleset together.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest

import eqsynth
from eqsynth import ops
from eqsynth.egraph.engine import Engine
from eqsynth.egraph.proving import meet
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, PROVE_PHASES, Limits, Phase
from eqsynth.errors import RuleError
from eqsynth.extract.candidates import candidates
from eqsynth.extract.kernel import Kernel
from eqsynth.extract.select import Selection
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.tensor import ClassRef, Op, Tensor
from eqsynth.ir.work import bytes_moved, flops
from eqsynth.lower.attention import attention
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.rules import Rule, RuleSet, load_rules
from eqsynth.testing.choices import RandomChoices, Rejected
from eqsynth.testing.firing import alone, fire
from eqsynth.testing.patterns import sample_of
from eqsynth.testing.search import estimated_plan
from eqsynth.testing.templates import SLOTS, Template
from tests.egraph.programs import PROGRAMS, squared_distances
from tests.egraph.test_transposed import transposed as transposed_and_its_taps
from tests.rules import test_einnet as einnet
from tests.terms import leaf, op

# Without the forms that proofs alone meet in: they prove what other rules are for as well.
RULES = load_rules().select(numerics=("bitwise", "real", "cancels"))
LIMITS = Limits(20_000, 120.0)

# ---- questions -----------------------------------------------------------------

Program = Callable[[], tuple[Tensor, ...]]


def fast(name: str, holds: Callable[[Op], bool] = lambda _op: True) -> Callable[[Kernel], float]:
    """Costs on a device that computes one operator 64 times as fast as all others: operations, and
    elements moved."""

    def cost(kernel: Kernel) -> float:
        term = kernel.term
        special = isinstance(term, Op) and term.name.removeprefix("Fused") == name and holds(term)
        return flops(term) / (64 if special else 1) + bytes_moved(term) / 4 + 1

    return cost


def undilated(term: Op) -> bool:
    return term.attrs[2] == (1, 1) if term.name == "Conv2d" else term.attrs[-1] == 1


def attends(term: Tensor) -> bool:
    return isinstance(term, Op) and attention(term) is not None


DEVICES: dict[str, Callable[[Kernel], float]] = {
    "matrices": fast("Matmul"),
    "convolutions": fast("Conv2d", undilated),
    "transposed": fast("ConvTranspose2d"),
    "bands": fast("G2BMM", undilated),
    "bands times": fast("GBMM", undilated),
    "attention": lambda kernel: flops(kernel.term) / (64 if attends(kernel.term) else 1) + 1,
    # No library, only generated kernels for scopes. A kernel costs more than what it adds up.
    "generated": lambda kernel: (
        1 if kernel.implementation == "torch.view"
        else 1e6 + flops(kernel.term) * (64 if isinstance(kernel.term, Op) else 1)
    ),
    # Winograd's algorithm.
    "3x3": fast("Conv2d", lambda term: term.args[1].shape[2:] == (3, 3)),
}


@dataclass(frozen=True)
class Winner:
    """Which equal program is the cheapest?

    Attributes:
        price: ``flops``, ``time`` (the nominal machine), or one of ``DEVICES``.
        found: with all rules: the FLOPs, else the operators that are run.
    """

    program: Program
    price: str
    found: float | str
    phases: tuple[Phase, ...] = DEFAULT_PHASES

    def answer(self, rules: RuleSet) -> tuple[float, str]:
        """The cost, and the operators that are run."""
        graph = saturate_terms(self.program(), rules, self.phases, LIMITS, False)
        assert graph.stop == "saturated"
        if self.price in DEVICES:
            selection = Selection(graph, candidates(graph, (TorchBackend(),)))
            plan = selection.best(DEVICES[self.price])
        else:
            plan = estimated_plan(graph, self.price)
        steps = [step.member for step in plan.steps if not isinstance(step.member, ClassRef)]
        names = [member.name if isinstance(member, Op) else "Scope" for member in steps]
        return float(f"{plan.cost_s:.6g}"), " ".join(names)

    def check(self, rest: RuleSet) -> None:
        cost, names = whole(self)
        assert self.found == (cost if isinstance(self.found, int) else names)
        assert self.answer(rest)[0] > cost


@dataclass(frozen=True)
class Equal:
    """Are two programs equal? With all rules they are.

    Attributes:
        numerics: classes of rules that may be used.
    """

    left: Program
    right: Program
    numerics: tuple[str, ...] = ("bitwise", "real")

    def answer(self, rules: RuleSet) -> bool:
        chosen = rules.select(numerics=self.numerics)
        found = meet(self.left(), self.right(), chosen, LIMITS)
        assert found.stop in ("proved", "saturated", "rounds")
        return found.proved

    def check(self, rest: RuleSet) -> None:
        assert whole(self)
        assert not self.answer(rest)


@cache
def whole(question: Winner | Equal) -> Any:
    """The answer with all rules; rows share it."""
    return question.answer(RULES)


# ---- programs ------------------------------------------------------------------


def known(name: str) -> Program:
    return lambda: (PROGRAMS[name](),)


def expressions(make: Callable[[], Expr | list[Expr]]) -> Program:
    return lambda: tuple(program_of(make())[0].outputs)


def terms(*made: Tensor) -> Program:
    return lambda: made


X, Y, Z = (eqsynth.input(n, s) for n, s in (("x", (3, 4)), ("y", (12,)), ("z", (64, 64))))
A, B = eqsynth.input("a", (3, 5)), eqsynth.input("b", (5, 4))
WHOLE = tuple(leaf(name, 3, 4, dtype="int64") for name in "mn")
IMAGE = eqsynth.input("image", (1, 8, 4, 5))
ONE_CHANNEL = eqsynth.input("one", (1, 1, 4, 5))
Q, KEYS, V = (eqsynth.input(n, (2, 6, 3)) for n in "qkv")


def many_channels(size: int) -> tuple[Tensor, ...]:
    """A 3 by 3 convolution of so many rows and columns, as large padded as not."""
    image, filters = leaf("x", 1, 16, size, size), leaf("w", 16, 16, 3, 3, constant=True)
    return (op("Conv2d", image, filters, attrs=((1, 1), (1, 1), (1, 1), 1)),)


@expressions
def few_filters() -> Expr:
    """Many channels, one filter: gathering after the product moves less than im2col before it."""
    return ops.conv2d(IMAGE, eqsynth.weight("w", (1, 8, 3, 3)), padding=1)


@expressions
def grouped() -> Expr:
    x = eqsynth.input("g", (1, 4, 4, 5))
    return ops.conv2d(x, eqsynth.weight("w", (4, 2, 3, 3)), padding=1, groups=2)


@expressions
def transposed() -> Expr:
    x, w = eqsynth.input("s", (1, 2, 3, 3)), eqsynth.weight("u", (2, 3, 4, 4))
    return ops.conv_transpose2d(x, w, stride=2, padding=1)


@expressions
def dilated() -> Expr:
    x, w = eqsynth.input("l", (1, 2, 6, 6)), eqsynth.weight("w", (3, 2, 3, 3))
    return ops.conv2d(x, w, padding=2, dilation=2)


@expressions
def large_window() -> Expr:
    x, w = eqsynth.input("l", (1, 4, 6, 6)), eqsynth.weight("w", (4, 4, 5, 5))
    return ops.conv2d(x, w, padding=2)


@expressions
def band_by_hand() -> Expr:
    return eqsynth.scope(
        lambda b, m, w: eqsynth.sum(lambda k: Q[b, m, k] * KEYS[b, m + w - 1, k], k=3),
        b=2, m=6, w=3,
    )  # fmt: skip


@expressions
def band_times_by_hand() -> Expr:
    return eqsynth.scope(
        lambda b, m, n: eqsynth.sum(lambda w: Q[b, m, w] * V[b, m + w - 1, n], w=3),
        b=2, m=6, n=3,
    )  # fmt: skip


@expressions
def two_biases() -> Expr:
    x = eqsynth.input("x", (5, 4)) + eqsynth.weight("b", (4,))
    return ops.relu(x @ eqsynth.weight("w", (4, 6)) + eqsynth.weight("c", (6,)))


@expressions
def cropped_twice() -> Expr:
    return ops.softmax(ops.narrow(ops.narrow(Z, 0, 4, 56), 0, 2, 48), 1)


@expressions
def heads() -> list[Expr]:
    """Four products of one row: each alone, or slices of one."""
    row = eqsynth.input("row", (1, 64))
    return [ops.softmax(row @ eqsynth.weight(f"w{n}", (64, 64)), 1) for n in range(4)]


@expressions
def time_steps() -> list[Expr]:
    """Four rows of a sequence times one matrix: each alone, or rows of one product."""
    sequence, w = eqsynth.input("sequence", (4, 1, 64)), eqsynth.weight("w", (64, 64))
    rows = [ops.reshape(ops.slice(sequence, 0, t, t + 1), (1, 64)) for t in range(4)]
    return [ops.softmax(row @ w, 1) for row in rows]


@expressions
def normalized_row() -> list[Expr]:
    """The first row of a normalized product: of the product one row will do."""
    rows = ops.layer_norm(A @ B, (A @ B).shape[-1:])
    return [ops.slice(rows, 0, 0, 1) @ eqsynth.weight("projection", (B.shape[-1], 3))]


@expressions
def branches() -> list[Expr]:
    convs = [ops.conv2d(IMAGE, eqsynth.weight(f"k{n}", (2, 8, 1, 1))) for n in range(4)]
    return [ops.softmax(y, 1) for y in convs]


def product(turned: bool) -> Expr:
    """relu(a @ b), its axes turned twice, once by the scope."""
    if not turned:
        matrix = eqsynth.scope(
            lambda i, j: eqsynth.sum(lambda k: A[i, k] * B[k, j], k=5), i=3, j=4
        )
        return eqsynth.scope(lambda j, i: ops.relu(matrix)[i, j] + X[i, j], j=4, i=3)
    matrix = eqsynth.scope(lambda j, i: eqsynth.sum(lambda k: A[i, k] * B[k, j], k=5), j=4, i=3)
    return eqsynth.scope(lambda j, i: ops.relu(matrix)[j, i] + X[i, j], j=4, i=3)


# ---- rows ----------------------------------------------------------------------

BITWISE = ("bitwise",)
EINNET = Winner(few_filters, "matrices", "Reshape Permute Matmul Reshape Permute Reshape Scope")
SUBPIXEL = Winner(
    transposed, "matrices", "Scope Reshape Matmul Reshape Permute Reshape Scope"
)
ATTENTION = Winner(known("attention"), "flops", 312)
CHAIN = Winner(known("biased-chain"), "flops", 26)
MLP = Winner(known("mlp"), "flops", 636)
ACROSS, DOWN = ops.reshape(ops.arange(3), (1, 3)), ops.reshape(ops.arange(3), (3, 1))
WINDOWED = Winner(known("windowed-attention"), "flops", 336)
EYE = Winner(known("identity-matrix"), "flops", 6)
LOOKED_UP = Winner(known("looked-up-rows"), "flops", 28)
BANDS = einnet.CASES["Fig. 14, a chain with relu"]
SCALARS = Winner(known("scalars"), "flops", 66)

ROWS: dict[str, Winner | Equal] = {
    # softmax(q k') v on a device that is fast at it
    **{
        rule: Winner(known(name), "attention", found)
        for rule, name, found in (
            ("match-attention", "attended-half", "Attention"),
            ("match-attention-quotient", "attended-quotient", "Attention"),
            ("match-attention-unscaled", "attended", "Attention"),
            ("match-causal-attention", "attended-below", "CausalAttention"),
            ("match-causal-attention-quotient", "hidden-quotient", "CausalAttention"),
            ("match-causal-attention-unscaled", "hidden-scores", "CausalAttention"),
            ("hide", "hidden-half", "CausalAttention"),
            ("match-masked-attention", "attended-mask", "MaskedAttention"),
            ("seen-by-none", "attended-seen", "Scope MaskedAttention"),
        )
    },
    # derive-explore, boundary
    "sum-split": EINNET,
    "variable-substitution": EINNET,
    "view-merge": EINNET,
    "iterator-split": SUBPIXEL,
    "correlate": Winner(partial(many_channels, 2), "flops", 11392),
    "correlate-losing": Winner(partial(many_channels, 4), "flops", 32640),
    "boundary-tighten": Winner(known("padded-sum"), "flops", 24),
    # windows-explore, axes-explore: in proofs only
    "window-split": Winner(
        large_window, "3x3", "Conv2d Reshape Permute Reshape Scope", PROVE_PHASES
    ),
    "expression-split": Equal(
        expressions(lambda: einnet.BOTH), expressions(einnet.conv3x3_of_both)
    ),
    "tap-merge": Equal(
        expressions(lambda: einnet.CONV), expressions(partial(einnet.three_conv1x3, True))
    ),
    "operand-split": Equal(expressions(lambda: BANDS[0]), expressions(BANDS[1])),
    "traversal-order": Equal(
        expressions(partial(product, False)), expressions(partial(product, True))
    ),
    # simplify: masks
    "zero-is-not-chosen": Winner(known("mask-of-numbers"), "flops", 64),
    "not-at-most": Equal(
        terms(op("LogicalNot", op("LessEqual", *WHOLE))), terms(op("Less", *reversed(WHOLE)))
    ),
    # contract-explore
    "factor": Winner(known("wide-convolution"), "flops", 3240),
    "fold-constants": Winner(known("pooled-linear"), "flops", 24),
    "hoist": Winner(known("odd-extents"), "flops", 12),
    "hoist-map": Winner(known("shifted-softmax"), "flops", 31),
    "distribute": Winner(known("sum-of-products"), "flops", 84),
    "common-factor": Winner(known("distributivity"), "flops", 60),
    "term-split": CHAIN,
    "multiply-out": Winner(
        lambda: (squared_distances(16, 16, 16),), "matrices",
        "Scope Permute Scope FusedMatmul Scope Scope",
    ),
    "fold-terms": Winner(two_biases, "flops", 270),
    "scale-of-shifted": Winner(known("scaled-layer"), "flops", 140),
    "scale-of-shifted-and-shift": Winner(known("standardized-layer"), "flops", 140),
    "terms-cancel": Winner(known("taken-off"), "flops", 140),
    "invariants": Winner(known("normalized-attention"), "flops", 84),
    "divided": Winner(known("weighted-mean"), "flops", 66),
    "quotient": Winner(known("repeated-rows"), "flops", 72),
    "delta-under-sum": EYE,
    "equality-is-one": EYE,
    "diagonal-is-product": Winner(known("diagonal-matrix"), "flops", 6),
    "cumsum-of-sum": Winner(known("sums-of-running-sums"), "flops", 36),
    "cumsum-of-difference": Winner(known("sums-of-running-sums"), "flops", 36),
    "order-is-ones": Winner(known("sums-of-rows"), "flops", 12),
    "triangle-is-product": Winner(known("causal-products"), "flops", 64),
    "other-triangle-is-product": Winner(known("sums-from-the-end"), "flops", 12),
    "gather-rows": LOOKED_UP,
    "gather-along": Winner(known("picked-along"), "flops", 48),
    "shared-places": Winner(known("enlarged-convolution"), "flops", 1152),
    "broadcast-beyond": Winner(known("conditioned-convolution"), "flops", 1960),
    "choice-of-sums": Winner(known("chosen-rows"), "flops", 152),
    "choice-of-matmuls": Winner(known("chosen-rows"), "flops", 152),
    "not-chosen": Winner(known("unless"), "flops", 12),
    "mask-of-sum": Winner(known("masked-rows"), "flops", 292),
    "mask-of-rows": Winner(known("masked-rows"), "flops", 292),
    "mask-of-others": Winner(known("filled-rows"), "flops", 84),
    "mask-of-other-rows": Winner(known("filled-product"), "flops", 56),
    "mask-of-bias": Winner(known("filled-rows"), "flops", 84),
    "mask-of-columns": Winner(known("masked-columns"), "flops", 180),
    "upsample-of-conv1x1": Winner(known("upsampled-product"), "flops", 5120),
    "convert-of-rows": Winner(known("one-hot-product"), "time", "Embedding"),
    "ungather-rows": LOOKED_UP,
    "convert-of-converted-equality": Equal(
        expressions(lambda: ops.to(ops.to(ops.eq(ACROSS, DOWN), "int64"), "float32")),
        expressions(lambda: ops.to(ops.eq(ACROSS, DOWN), "float32")),
    ),
    "rows-by-place": Equal(
        expressions(lambda: ops.embedding(A, ops.flip(ops.arange(3), [0]))),
        expressions(lambda: ops.flip(A, [0])),
    ),
    "rfactor": Winner(known("max-pooling"), "flops", 540),
    "part": Winner(expressions(lambda: ops.slice(ops.relu(A @ B), 0, 0, 1)), "flops", 44),
    "extremum": Winner(known("largest"), "flops", 15),
    "restrict": WINDOWED,
    "reach": WINDOWED,
    "where-as-and": WINDOWED,
    "and-true": WINDOWED,
    # normal
    "canonical-form": Winner(known("weighted-sum"), "flops", 48),
    "derived-form": Winner(known("biased-chain"), "matrices", "Scope Reshape FusedMatmul Reshape"),
    "identity-view": Equal(
        expressions(lambda: ops.permute(ops.permute(X, (1, 0)), (1, 0))), expressions(lambda: X)
    ),
    "traversal-merge": ATTENTION,
    "reduction-merge": Equal(
        expressions(lambda: ops.max_pool2d(ops.max_pool2d(IMAGE, (3, 2), 1), 2, 1)),
        expressions(lambda: ops.max_pool2d(IMAGE, (4, 3), 1)),
    ),
    "expression-fusion": MLP,
    "read-constants": ATTENTION,
    "derived-constants": Equal(
        expressions(lambda: ops.conv2d(
            ONE_CHANNEL, ops.pad(ops.full((1, 1, 1, 1), 1.0), (1, 1, 1, 1)), padding=1)),
        expressions(lambda: ONE_CHANNEL),
    ),
    "like-terms": Equal(
        expressions(lambda: einnet.pooled(einnet.U) + einnet.pooled(einnet.U)),
        expressions(lambda: einnet.depthwise(ops.full((2, 1, 3, 3), 2 / 9))),
    ),
    "number-is-full": Equal(
        expressions(lambda: einnet.depthwise(einnet.POOL + einnet.POOL)),
        expressions(lambda: einnet.depthwise(ops.full((2, 1, 3, 3), 2 / 9))),
    ),
    "phase-select": SUBPIXEL,
    "iterator-merge": Equal(
        expressions(lambda: ops.sum(ops.syno.split(Y, 0, 4), (0, 1))),
        expressions(lambda: ops.sum(Y, 0)),
    ),
    "reduction-unfold": Winner(
        known("flattened-patches"), "time", "Reshape Conv2d Reshape Permute"
    ),
    # match
    "match-matmul": EINNET,
    "match-conv2d": Winner(
        dilated, "convolutions", "Scope Reshape Conv2d Reshape Permute Reshape Scope"
    ),
    "match-conv-transpose2d": Winner(
        terms(transposed_and_its_taps((2, 2), (1, 0), (0, 0), (1, 1), 1, (3, 3))[1]),
        "transposed", "ConvTranspose2d",
    ),  # fmt: skip
    "match-g2bmm": Winner(band_by_hand, "bands", "G2BMM"),
    "match-gbmm": Winner(band_times_by_hand, "bands times", "GBMM"),
    "match-cumsum": Winner(known("sums-of-rows"), "flops", 12),
    "match-epilogue": MLP,
    "match-view": Winner(cropped_twice, "time", "Slice Softmax"),
    # merge
    "slice-of-layer-norm": Winner(normalized_row, "time", "Matmul Slice LayerNorm Matmul"),
    "stack": Winner(
        time_steps, "time", "Reshape Matmul Reshape" + 4 * " Slice Reshape Softmax"
    ),
    "merge-matmuls": Winner(heads, "time", "Matmul" + 4 * " Slice Softmax"),
    "merged-matmul-definition": Winner(heads, "generated", "Scope" + 4 * " Slice Softmax"),
    "merged-conv2d-definition": Winner(branches, "generated", "Scope" + 4 * " Slice Softmax"),
    "merge-conv2ds": Winner(branches, "time", "Conv2d" + 4 * " Slice Softmax"),
    # scalar
    "relu-idempotent": SCALARS,
    "abs-of-relu": SCALARS,
    "abs-idempotent": SCALARS,
    "max-idempotent": SCALARS,
    "min-idempotent": SCALARS,
    "max-with-zero": Equal(
        expressions(lambda: eqsynth.scope(lambda i, j: ops.maximum(A[i, j], 0.0), i=3, j=5)),
        expressions(lambda: ops.relu(A)),
    ),
    "zero-with-max": Equal(
        expressions(lambda: eqsynth.scope(lambda i, j: ops.maximum(0.0, X[i, j]), i=3, j=4)),
        expressions(lambda: ops.relu(X)),
    ),
    "reciprocal-of-sqrt": Equal(
        expressions(lambda: X / ops.sqrt(ops.sum(X, 1, keepdim=True)) + X),
        expressions(lambda: X * ops.rsqrt(ops.sum(X, 1, keepdim=True)) + X),
    ),
}

M, ROW = leaf("m", 4, 6), leaf("row", 12)
MERGED, BLOCKS = op("Merge", M, attrs=(0,)), op("Split", ROW, attrs=(0, 4))
SHORT = op("Stride", op("Stride", ROW, attrs=(0, 2)), attrs=(0, 3))
WIDE = op("Expand", op("Expand", leaf("one", 1, 3), attrs=((2, 3),)), attrs=((4, 2, 3),))
RESHAPED = op("Reshape", op("Reshape", M, attrs=((8, 3),)), attrs=((2, 12),))
SHIFTED = op("Shift", op("Shift", ROW, attrs=(0, 2)), attrs=(0, 3))

# Bit by bit: without the laws of scopes, which take sums in another order, views are all there is.
ROWS |= {
    rule: Equal(terms(left), terms(right), BITWISE)
    for rule, left, right in (
        ("reshape-of-reshape", RESHAPED, op("Reshape", M, attrs=((2, 12),))),
        ("reshape-same", op("Reshape", M, attrs=((4, 6),)), M),
        ("split-as-reshape", op("Split", MERGED, attrs=(0, 6)), M),
        ("merge-as-reshape", op("Merge", BLOCKS, attrs=(0,)), ROW),
        ("expand-same", op("Expand", M, attrs=((4, 6),)), M),
        ("expand-of-expand", WIDE, op("Expand", leaf("one", 1, 3), attrs=((4, 2, 3),))),
        ("relu-of-relu", op("Relu", op("Relu", M)), op("Relu", M)),
        ("neg-of-neg", op("Neg", op("Neg", M)), M),
        ("concat-of-one", op("Concat", M, attrs=(0,)), M),
        ("shift-of-shift", SHIFTED, op("Shift", ROW, attrs=(0, 5))),
        ("shift-round", op("Shift", ROW, attrs=(0, 24)), ROW),
        ("stride-of-stride", SHORT, op("Stride", ROW, attrs=(0, 6))),
        ("stride-by-one", op("Stride", ROW, attrs=(0, 1)), ROW),
    )
}


@pytest.mark.rotating(parts=32)
@pytest.mark.parametrize("rule", ROWS)
def test_without_the_rule_the_answer_is_another(rule: str) -> None:
    ROWS[rule].check(RULES.without(rule))


def test_every_rule_has_a_row() -> None:
    """All but definitions and analyses; rewrites of indices are asked below."""
    asked = {
        rule.name
        for rule in RULES.rules
        if rule.kind in ("rewrite", "law-request") and rule.ruleset not in ("define", "index")
    }
    assert asked == set(ROWS)
    assert {rule.name for name in RULES.rulesets if name.endswith("-explore")
            for rule in RULES.of(name) if rule.kind != "law-apply"} <= set(ROWS)


def test_a_rule_that_is_not_there_cannot_be_left_out() -> None:
    with pytest.raises(RuleError) as caught:
        RULES.without("factor", "factr")
    assert caught.value.got == "factr" and "factor" in caught.value.hint


@pytest.mark.rotating
def test_a_rule_that_nothing_needs_has_no_row() -> None:
    """The planted fault: a rule that others imply changes no answer."""
    with pytest.raises(AssertionError):
        CHAIN.check(RULES.without("merge-as-reshape"))


# ---- indices -------------------------------------------------------------------

INDICES = load_rules(["schema.egg", "shape.egg", "index.egg"])
ROUNDS = 30


@pytest.mark.rotating(parts=32)
@pytest.mark.parametrize("rule", INDICES.of("index"), ids=lambda rule: rule.name)
def test_a_law_of_indices_says_what_the_others_do_not(rule: Rule) -> None:
    """On an instance of its own: both sides are one with it, and two without."""
    template, own = Template(rule, INDICES), alone(INDICES, rule)
    rest = INDICES.without(rule.name)
    for seed in range(1500):
        try:
            sample = sample_of(template, RandomChoices(seed))
        except Rejected:
            continue
        for pair in fire(own, rule, [sample]):
            if pair.problem is None and not united(rest, pair.left, pair.right):
                assert united(INDICES, pair.left, pair.right)
                return
    raise AssertionError(f"the others imply {rule.name}: {rule.comment}")


def united(rules: RuleSet, left: Any, right: Any) -> bool:
    """Both indices are in one class after the rules have nothing to add."""
    with closing(Engine(rules)) as engine:
        values = [("Value", side) for side in (left, right)]
        engine.insert([("Scope", list(SLOTS), [], "sum", value) for value in values])
        engine.analyse()
        for _ in range(ROUNDS):
            for law in rules.of("index"):
                engine.match(law)
            if not any([engine.apply(law) for law in rules.of("index")]):
                break
            engine.analyse()
        classes = {
            (node.function, node.args): eclass
            for eclass, nodes in engine.snapshot().classes.items()
            for node in nodes
        }

    def class_of(tree: Any) -> Any:
        if isinstance(tree, tuple):
            return classes[tree[0], tuple(map(class_of, tree[1:]))]
        return tree

    return bool(class_of(left) == class_of(right))
