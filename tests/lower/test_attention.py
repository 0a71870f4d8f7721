"""Attention: what the rules find, and what torch's fused kernel computes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from lower_cases import arguments, check_kernel

from eqsynth import input as argument
from eqsynth import ops, optimize
from eqsynth.egraph.defined import operators_of
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.frontend.ops.creation import iota
from eqsynth.ir.operators import Operator
from eqsynth.ir.tensor import Op, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower.attention import attention
from eqsynth.lower.kernel_data import kernel_from_data, kernel_to_data
from eqsynth.lower.torch_backend import FUSED_ATTENTION, TorchBackend
from eqsynth.rules import DEFAULT_FILES, load_rules, load_text
from eqsynth.testing import assert_egraph_consistent

RULES = load_rules()
ROWS = operators_of(RULES.definitions)
Q, T, V = argument("q", (2, 3, 5, 4)), argument("t", (2, 3, 4, 7)), argument("v", (2, 3, 7, 6))
M, SEEN = argument("m", (5, 7)), argument("seen", (2, 1, 5, 7), dtype="bool")
NOTHING = ops.full((), -math.inf)


def softmax(scores: Expr) -> Expr:
    return ops.softmax(scores, -1)


def masked(mask: Expr, asked: Expr) -> Expr:
    """As torch has it: a query that sees nothing gives 0."""
    nothing = ops.eq(ops.amax(asked, -1, keepdim=True), -math.inf)
    return ops.where(nothing, ops.full((), 0.0), softmax((Q @ T) * 0.5 + mask) @ V)


def below() -> Expr:
    return ops.ge(iota((5, 7), 0), iota((5, 7), 1))


FOUND: dict[str, Callable[[], Expr]] = {
    "Attention": lambda: softmax((Q @ T) * 0.5) @ V,
    "Attention of a quotient": lambda: softmax((Q @ T) / 2.0) @ V,
    "Attention of scores": lambda: softmax(Q @ T) @ V,
    "Attention of torch": lambda: ops.scaled_dot_product_attention(Q, ops.transpose(T, -1, -2), V),
    "CausalAttention": lambda: softmax(ops.where(below(), (Q @ T) * 0.5, NOTHING)) @ V,
    "MaskedAttention": lambda: masked(M, M),
    "MaskedAttention of torch by bools": lambda: ops.scaled_dot_product_attention(
        Q, ops.transpose(T, -1, -2), V, SEEN
    ),
}
OTHERS: dict[str, Callable[[], Expr]] = {
    "along another axis": lambda: ops.softmax((Q @ T) * 0.5, -2) @ V,
    "keys that come later": lambda: (
        softmax(ops.where(ops.le(iota((5, 7), 0), iota((5, 7), 1)), (Q @ T) * 0.5, NOTHING))
        @ V
    ),
    "a mask that is 0": lambda: (
        softmax(ops.where(below(), (Q @ T) * 0.5, ops.full((), 0.0))) @ V
    ),
    "another mask that is asked": lambda: masked(M, argument("n", (5, 7))),
    "a scale by query": lambda: softmax((Q @ T) * argument("s", (5, 1))) @ V,
}


def members(expr: Expr) -> list[Op]:
    graph = saturate_terms(
        program_of(expr)[0].outputs, RULES, DEFAULT_PHASES, Limits(deadline_s=3600.0), True
    )
    assert_egraph_consistent(graph)
    return [m for c in graph.classes.values() for m in c if isinstance(m, Op) and m.name in ROWS]


@pytest.mark.rotating
@pytest.mark.parametrize("name", FOUND)
def test_attention_is_found(name: str) -> None:
    found = members(FOUND[name]())
    assert {term.name for term in found} == {name.partition(" ")[0]}
    for term in found:
        kernels = list(TorchBackend().kernels(term, (False,) * len(args_of(term))))
        assert {kernel.implementation for kernel in kernels} == {FUSED_ATTENTION}
        for kernel in kernels:
            check_kernel(TorchBackend(), kernel, arguments(term))


@pytest.mark.rotating
@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_attention(name: str) -> None:
    assert members(OTHERS[name]()) == []


def term(
    name: str, *shapes: tuple[int, ...], rows: dict[str, Operator] = ROWS, dtype: str = "float32"
) -> Op:
    args = tuple(argument(str(n), s, dtype=dtype).tensor for n, s in enumerate(shapes))
    return Op(name, args, (0.5,), defined=rows[name])


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("name", ["Attention", "CausalAttention", "MaskedAttention"])
def test_every_rank(name: str, rank: int) -> None:
    front = (2, 3)[: rank - 2]
    shapes = [(*front, 5, 4), (*front, 4, 7), (*front, 7, 6)]
    shapes += [(5, 7)] if name == "MaskedAttention" else []
    made = term(name, *shapes)
    assert made.type == TensorType((*front, 5, 6), "float32")
    kernels = list(TorchBackend().kernels(made, (False,) * len(shapes)))
    assert {kernel.implementation for kernel in kernels} == {FUSED_ATTENTION}
    for kernel in kernels:
        check_kernel(TorchBackend(), kernel, arguments(made))


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("same", [(0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 0, 0)])
def test_one_tensor_may_be_two_operands(same: tuple[int, ...], rank: int) -> None:
    """softmax(x xᵀ) x has two arguments. Where queries are keys, torch reads one tensor in two
    layouts, so the kernel isn't the fused one."""
    made = term("Attention", *[(*(2, 3)[: rank - 2], 4, 4)] * 3)
    made = Op(made.name, tuple(made.args[n] for n in same), made.attrs, defined=made.defined)
    distinct = args_of(made)
    kernels = list(TorchBackend().kernels(made, (False,) * len(distinct)))
    assert kernels
    fused = {kernel.implementation == FUSED_ATTENTION for kernel in kernels}
    assert fused == {same == (0, 1, 0)}
    for kernel in kernels:
        assert len(kernel.inputs) == len(distinct)
        check_kernel(TorchBackend(), kernel, arguments(made))


@pytest.mark.rotating
def test_attention_without_projections() -> None:
    """It was an error of a search that queries and values are one tensor."""

    class Plain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ x.mT, -1) @ x

    x = torch.randn(2, 6, 4)
    program = optimize(Plain().eval(), (x,), engines=(), objective="flops", strict=True)
    torch.testing.assert_close(program(x), Plain()(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        *(
            ("MaskedAttention", ((2, 3, 5, 4), (2, 3, 4, 7), (2, 3, 7, 6), mask))
            for mask in ((7,), (5, 1), (3, 5, 7), (2, 1, 1, 7))
        ),
        ("MaskedAttention", ((5, 4), (4, 7), (7, 6), (1,))),
        ("Attention", ((1, 1, 1, 1),) * 3),
        ("CausalAttention", ((2, 1, 1, 4), (2, 1, 4, 7), (2, 1, 7, 4))),
        ("CausalAttention", ((2, 1, 7, 4), (2, 1, 4, 1), (2, 1, 1, 4))),
    ],
)
def test_masks_that_are_broadcast_and_extents_of_1(
    name: str, shapes: tuple[tuple[int, ...], ...], dtype: str
) -> None:
    made = term(name, *shapes, dtype=dtype)
    kernels = list(TorchBackend().kernels(made, (False,) * len(args_of(made))))
    assert {kernel.implementation for kernel in kernels} == {FUSED_ATTENTION}
    for kernel in kernels:
        check_kernel(TorchBackend(), kernel, arguments(made))


def test_a_file_says_what_an_operator_of_a_rule_file_means() -> None:
    made = term("CausalAttention", (5, 4), (4, 7), (7, 6))
    kernel = next(iter(TorchBackend().kernels(made, (False,) * 3)))
    again = kernel_from_data(json.loads(json.dumps(kernel_to_data(kernel))))
    assert isinstance(again.term, Op) and again.term.type == made.type
    assert attention(again.term) == attention(made)
    check_kernel(TorchBackend(), again, arguments(made))


def test_what_is_broadcast_is_left_to_products() -> None:
    assert attention(term("Attention", (3, 5, 4), (4, 7), (7, 6))) is None


def test_an_operator_of_the_same_name_is_another() -> None:
    files = [file for file in DEFAULT_FILES if file != "attention.egg"]
    text = """
;; the scores by themselves
(define (Attention q t v (c f64))
  (Matmul (Matmul q t) (Mul v (Full (vec-empty) c (dtype q)))))
"""
    rows = operators_of(load_text(text, "own.egg", after=files).definitions)
    shapes = ((5, 4), (4, 7), (7, 6))
    assert attention(term("Attention", *shapes)) is not None
    assert attention(term("Attention", *shapes, rows=rows)) is None


def test_a_query_that_sees_nothing_gives_0() -> None:
    made = term("MaskedAttention", (5, 4), (4, 7), (7, 6), (5, 7))
    found = attention(made)
    assert found is not None
    q, t, v, m = (torch.randn(arg.shape) for arg in made.args)
    m[2] = -math.inf
    assert found.function()(q, t, v, m)[2].eq(0).all()
