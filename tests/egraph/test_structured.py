"""Products with structured operands: a search finds the FLOPs that the structure needs.

A row is a program, with the FLOPs of its best form. Every member of its e-graph is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES
from eqsynth.ir.tensor import Tensor
from eqsynth.testing.consistency import assert_egraph_consistent
from tests.egraph.programs import LIMITS, RULES, least_flops, weight
from tests.egraph.programs import PROGRAMS as SMALL
from tests.terms import leaf, op

KEEPS_DIGITS = RULES.select(numerics=("bitwise", "real"))

# m rows of n elements, and products with p columns.
M, N, P = 3, 4, 5
IDS = leaf("ids", M, dtype="int64")
X, Y = leaf("x", M, N), leaf("y", M, N)


def product_of(*pieces: Tensor) -> Tensor:
    """``cat(pieces, -1) @ w``."""
    rows = sum(piece.shape[-1] for piece in pieces)
    return op("Matmul", op("Concat", *pieces, attrs=(1,)), weight("w", rows, P))


def embedded(name: str) -> Tensor:
    return op("Embedding", weight(name, 7, N), IDS)


def layer(x: Tensor) -> Tensor:
    """``x @ w + b``."""
    return op("Add", op("Matmul", x, weight("w", N, P)), weight("b", P))


def mean_of(*layers: Tensor) -> Tensor:
    stacked = [op("Reshape", one, attrs=((1, M, P),)) for one in layers]
    return op("ReduceMean", op("Concat", *stacked, attrs=(0,)), attrs=((0,), 0))


def zeros(*shape: int) -> Tensor:
    return op("Full", attrs=(shape, 0.0, "float32"))


def identity(size: int) -> Tensor:
    i, j = (op("Iota", attrs=((size, size), axis, "int64")) for axis in (0, 1))
    return op("Cast", op("Equal", i, j), attrs=("float32",))


def block_diagonal(*blocks: Tensor) -> Tensor:
    sizes = [block.shape[0] for block in blocks]
    rows = [
        op("Concat", *[block if n == m else zeros(sizes[n], size) for m, size in enumerate(sizes)],
           attrs=(1,))
        for n, block in enumerate(blocks)
    ]  # fmt: skip
    return op("Concat", *rows, attrs=(0,))


def kron_with_identity(count: int, block: Tensor) -> Tensor:
    size = block.shape[0]
    apart = op("Reshape", identity(count), attrs=((count, 1, count, 1),))
    along = op("Reshape", block, attrs=((1, size, 1, size),))
    return op("Reshape", op("Mul", apart, along), attrs=((count * size, count * size),))


def diagonal_filters(channels: int) -> Tensor:
    """Weights of a dense convolution that are zero but for one input channel a filter."""
    at = op("Reshape", op("Equal", *(op("Iota", attrs=((channels, channels), axis, "int64"))
        for axis in (0, 1))), attrs=((channels, channels, 1, 1),))  # fmt: skip
    filters = op("Reshape", weight("k", channels, 3, 3), attrs=((channels, 1, 3, 3),))
    return op("Where", at, filters, op("Full", attrs=((), 0.0, "float32")))


def picked(name: str) -> Tensor:
    """Rows of ``x``, each of them three times on average."""
    return op("Embedding", X, leaf(name, 3 * M, dtype="int64"))


def pairs(mask: Tensor) -> Tensor:
    """``(x @ x' * mask) @ y``, of 6 rows by 6."""
    x = leaf("x", 6, 2)
    products = op("Matmul", x, op("Permute", x, attrs=((1, 0),)))
    return op("Matmul", op("Mul", products, mask), leaf("y", 6, 2))


def number(value: float) -> Tensor:
    return op("Full", attrs=((), value, "float32"))


def centred_rows() -> Tensor:
    """(eye - 1 / 6) @ x: each row without the mean of all rows."""
    return op("Matmul", op("Sub", identity(6), number(1 / 6)), leaf("x", 6, 2))


def centred_by_ones() -> Tensor:
    """(eye - ones / 6) @ x, the same."""
    ones = op("Full", attrs=((6, 6), 1.0, "float32"))
    return op("Matmul", op("Sub", identity(6), op("Div", ones, number(6.0))), leaf("x", 6, 2))


def means_so_far() -> Tensor:
    """(tril(ones) / count) @ x: of each row the mean of all rows up to it."""
    i, j = (op("Iota", attrs=((6, 6), axis, "int64")) for axis in (0, 1))
    below = op("Where", op("LessEqual", j, i), number(1.0), number(0.0))
    return op("Matmul", op("Div", below, weight("count", 6, 1)), leaf("x", 6, 2))


def polynomial_of_a_matrix() -> Tensor:
    """(a @ a + a) @ x = a @ (a @ x) + a @ x."""
    a = leaf("a", 9, 9)
    return op("Matmul", op("Add", op("Matmul", a, a), a), leaf("x", 9, 1))


def neighbours() -> Tensor:
    """(x + a @ x) @ w = x @ w + a @ (x @ w), of 8 nodes, from 4 columns to 1."""
    a, x = leaf("a", 8, 8), leaf("x", 8, 4)
    return op("Matmul", op("Add", op("Matmul", a, x), x), weight("w", 4, 1))


def filtered_twice() -> Tensor:
    """Windows of 3 of windows of 3, from 2 channels through 9 to 2."""
    attrs = ((1, 1), (0, 0), (1, 1), 1)
    inner = op("Conv2d", leaf("x", 1, 2, 1, 9), weight("w", 9, 2, 1, 3), attrs=attrs)
    return op("Conv2d", inner, weight("v", 2, 9, 1, 3), attrs=attrs)


def outer(*sizes: int) -> Tensor:
    """``u vᵀ`` of two vectors of weights."""
    u, v = (weight(name, size) for name, size in zip("uv", sizes, strict=True))
    return op("Mul", op("Reshape", u, attrs=((sizes[0], 1),)), v)


def separable_filter() -> Tensor:
    """A window of 3 x 5 taps that is the outer product of two vectors, at every pixel of 7 x 8."""
    kernel = op("Reshape", outer(3, 5), attrs=((1, 1, 3, 5),))
    attrs = ((1, 1), (1, 2), (1, 1), 1)
    return op("Conv2d", leaf("x", 2, 1, 7, 8), kernel, attrs=attrs)


def kronecker_product() -> Tensor:
    """``x @ kron(a, b)``, of 12 rows."""
    a = op("Reshape", weight("a", 3, 3), attrs=((3, 1, 3, 1),))
    b = op("Reshape", weight("b", 4, 4), attrs=((1, 4, 1, 4),))
    kron = op("Reshape", op("Mul", a, b), attrs=((12, 12),))
    return op("Matmul", leaf("x", M, 12), kron)


def recurrence(steps: int) -> Tensor:
    """``h = h @ a + x[t] @ b``, from 0, of 6 elements; then ``h @ c``."""
    a, b, c = weight("a", 6, 6), weight("b", 2, 6), weight("c", 6, 2)
    h = op("Matmul", leaf("x0", 1, 2), b)
    for t in range(1, steps):
        h = op("Add", op("Matmul", h, a), op("Matmul", leaf(f"x{t}", 1, 2), b))
    return op("Matmul", h, c)


def squared(rows: int) -> Tensor:
    """The square of ``q @ k``, of two columns of q."""
    scores = op("Matmul", leaf("q", rows, 2), leaf("k", 2, rows))
    return op("Mul", scores, scores)


PROGRAMS: dict[str, tuple[Callable[[], Tensor], int]] = {
    # x @ (w1 + w2)
    "twice": (lambda: product_of(X, X), 2 * M * N * P),
    # x @ (w1 - w2)
    "negated": (lambda: product_of(X, op("Neg", X)), 2 * M * N * P),
    # x @ (w1 + w3) + y @ w2
    "around": (lambda: product_of(X, Y, X), 2 * 2 * M * N * P),
    # embedding(t @ w1, ids) + embedding(u @ w2, ids)
    "rows": (lambda: product_of(embedded("t"), embedded("u")), M * P),
    # (x - y) @ w
    "difference": (lambda: op("Sub", layer(X), layer(Y)), M * N + 2 * M * N * P),
    # (x + y) @ (w / 2) + b
    "mean": (lambda: mean_of(layer(X), layer(Y)), M * N + 2 * M * N * P + M * P),
    # embedding(t @ w1, ids) + x @ w2
    "rows-beside": (lambda: product_of(embedded("t"), X), 2 * M * N * P + M * P),
    # cat(x1 @ a, x2 @ b, x3 @ c)
    "block-diagonal": (
        lambda: op("Matmul", leaf("x", M, 9), block_diagonal(*(weight(n, 3, 3) for n in "abc"))),
        3 * 2 * M * 3 * 3,
    ),
    # a for each block of rows
    "kron": (
        lambda: op("Matmul", leaf("x", M, 12), kron_with_identity(3, weight("a", 4, 4))),
        3 * 2 * M * 4 * 4,
    ),
    # {sum_k x[i, j + k - 2] v[k]}, and then the same along i
    "separable-filter": (separable_filter, 2 * 2 * 7 * 8 * (3 + 5)),
    # x[i, q, r] a[q, s] b[r, t], one after the other
    "kronecker-product": (kronecker_product, 2 * M * 12 * 3 + 2 * M * 12 * 4),
    # x0 @ (b @ a @ a @ c) + x1 @ (b @ a @ c) + x2 @ (b @ c)
    "recurrence": (lambda: recurrence(3), 3 * 2 * 2 * 2 + 2 * 2),
    # a depthwise convolution
    "diagonal-filters": (
        lambda: op("Conv2d", leaf("x", 1, 4, 5, 5), diagonal_filters(4),
            attrs=((1, 1), (1, 1), (1, 1), 1)),
        2 * 4 * 25 * 9,
    ),
    # one value for each window: x @ sum(w)
    "pooled-transposed-convolution": (
        lambda: op("AvgPool2d", op("ConvTranspose2d", leaf("x", 1, 3, 4, 4),
            weight("w", 3, 2, 2, 2), attrs=((2, 2), (0, 0), (0, 0), (1, 1), 1)),
            attrs=((2, 2), (2, 2), (0, 0), (1, 1))),
        2 * 16 * 3 * 2,
    ),
    # two products a node, and not one an edge
    "edges": (lambda: product_of(picked("i"), picked("j")), 2 * 2 * M * N * P + 3 * M * P),
    "sums-of-edges": (
        lambda: op("Matmul", op("Add", picked("i"), picked("j")), weight("w", N, P)),
        2 * M * N * P + 3 * M * P,
    ),
    # cat(x[i], x[j] - x[i]) @ w: two products a node, and not one an edge
    "relative-edges": (
        lambda: op("Matmul", op("Concat", picked("i"), op("Sub", picked("j"), picked("i")),
                                attrs=(1,)), weight("w", 2 * N, P)),
        2 * 2 * M * N * P + 3 * M * P,
    ),
    # x @ (w1 @ v1) + y @ (w1 @ v2) + c
    "layers-beside": (
        lambda: op("Matmul", op("Concat", layer(X), layer(Y), attrs=(1,)), weight("v", 2 * P, 1)),
        2 * 2 * M * N + M,
    ),
    # x @ ((w1 + w2) @ v) + y @ .. + c: a layer that is reshaped is read as it is
    "mean-of-layers": (
        lambda: op("Matmul", mean_of(layer(X), layer(Y)), weight("v", P, 1)),
        M * N + 2 * M * N + M,
    ),
    # embedding(t @ w, i) + embedding(u @ w, j)
    "sum-of-rows": (
        lambda: op("Matmul", op("Add", embedded("t"), embedded("u")), weight("w", N, P)), M * P
    ),
    # x - mean(x), with the mean of 12 elements and a number
    "centred-rows": (centred_rows, 26),
    "centred-by-ones": (centred_by_ones, 26),
    # cumsum(x) * {1 / count}
    "means-so-far": (means_so_far, 2 * 6 * 2),
    # a[i] * x[i, j] + b[i] * x[i - 1, j] + x[i, j]
    "diagonals": (SMALL["diagonals"], 46),
    # x[i + 1, j] + x[i - 1, j] - 2 * x[i, j]
    "second-differences": (SMALL["second-differences"], 36),
    # a @ (a @ x) + a @ x
    "polynomial-of-a-matrix": (polynomial_of_a_matrix, 2 * 2 * 81 + 9),
    "neighbours": (neighbours, 2 * 8 * 4 + 2 * 64 + 8),
    # one window of 5, with weights between 2 channels and 2
    "filtered-twice": (filtered_twice, 2 * 5 * 2 * 2 * 5),
    # sum((q' q) * (k k')): 2 x 2 matrices
    "squared-product": (
        lambda: op("ReduceSum", squared(24), attrs=((0, 1), 0)), 2 * 4 * 24 * 2 + 2 * 4
    ),
    # the four products of two columns of q, by {k' k' v} of each
    "polynomial-attention": (
        lambda: op("Matmul", squared(24), leaf("v", 24, 3)), 2 * 24 * 4 + 2 * 2 * 24 * 4 * 3
    ),
    # x @ (x' @ y) / 2 + |x[i]|^2 * y[i, j]
    "pairs-with-a-diagonal": (
        lambda: pairs(op("Add", identity(6), number(0.5))), 2 * 2 * 6 * 2 * 2 + 6 * 4 + 2 * 12
    ),
}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_structure_is_used(name: str) -> None:
    program, least = PROGRAMS[name]
    graph = saturate_terms((program(),), KEEPS_DIGITS, DEFAULT_PHASES, LIMITS, True)
    assert graph.stop == "saturated"
    # Additions of parts that are zero elsewhere may stand in steps of their own.
    assert least <= least_flops(graph) <= least + 2 * M * 9
    assert_egraph_consistent(graph, seed=5)


@pytest.mark.rotating
def test_what_a_mask_leaves_out_is_not_subtracted() -> None:
    """``(x @ x' * (1 - eye)) @ y`` is less work as ``x @ (x' @ y)`` without the squares of x, which
    may be so large that the rest is lost in their rounding."""
    hidden = op("Sub", number(1.0), identity(6))
    nested = op("Add", number(1.0), op("Sub", op("Full", attrs=((6, 6), 0.25, "float32")),
                                       identity(6)))  # fmt: skip
    for mask in (hidden, nested):
        graph = saturate_terms((pairs(mask),), KEEPS_DIGITS, DEFAULT_PHASES, LIMITS, True)
        assert graph.stop == "saturated"
        assert least_flops(graph) == 2 * (2 * 6 * 6 * 2) + 36
