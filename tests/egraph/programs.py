"""Small programs, each with the structure of a part of some model, and their saturated e-graphs.

``saturated`` returns the e-graph of a program. In a run of the tests it is made once, for all
processes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import PROVE_PHASES, Limits
from eqsynth.extract.cost import CostModel
from eqsynth.extract.measure import measure_cpu_target
from eqsynth.extract.profile import Profile
from eqsynth.extract.search import extract
from eqsynth.ir.index import Index
from eqsynth.ir.operators import OPERATORS
from eqsynth.ir.scalar import Call, Num, Prod, Read, Sum, Value
from eqsynth.ir.tensor import Op, Scope, Tensor
from eqsynth.ir.work import flops
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.rules import RuleSet, load_rules
from tests.egraph.attending import PROGRAMS as ATTENDING
from tests.egraph.choices import (
    chosen_rows,
    filled_product,
    filled_rows,
    masked_columns,
    masked_rows,
    picked_along,
    unless,
)
from tests.egraph.normalizations import (
    layer_norm,
    part_of_a_normalization,
    scaled_layer,
    standardized_layer,
    weighted_mean,
)
from tests.shared import once
from tests.terms import INF, it, leaf, op

# Without the rules of `proof` numerics, whose forms only proofs ask for.
RULES = load_rules().select(numerics=("bitwise", "real", "cancels"))
# The numbers of e-nodes and of rounds bound the work. The deadline is only for a hang.
LIMITS = Limits(enodes=20_000, deadline_s=3600.0)

IMAGE = leaf("image", 1, 3, 6, 5)


def weight(name: str, *shape: int) -> Tensor:
    return leaf(name, *shape, constant=True)


def chain(length: int) -> Tensor:
    extents = [2, 3, 5, 4, 3, 2, 6, 3]
    x: Tensor = leaf("m0", extents[0], extents[1])
    for n in range(1, length):
        x = op("Matmul", x, leaf(f"m{n}", extents[n], extents[n + 1]))
    return x


def attention() -> Tensor:
    """(Q K') V."""
    q, k, v = (leaf(name, 2, 4, 3) for name in "qkv")
    scores = op("Matmul", q, op("Permute", k, attrs=((0, 2, 1),)))
    return op("Matmul", op("Mul", scores, op("Full", attrs=((1,), 0.5, "float32"))), v)


def distributivity() -> Tensor:
    """a @ b + a @ c."""
    a, b, c = leaf("a", 2, 3), leaf("b", 3, 4), leaf("c", 3, 4)
    return op("Add", op("Matmul", a, b), op("Matmul", a, c))


def square_beside_product() -> Tensor:
    """(a @ b)^2 + a @ c: the two terms have no common factor."""
    a, b, c = leaf("a", 2, 3), leaf("b", 3, 4), leaf("c", 3, 4)
    y = op("Matmul", a, b)
    return op("Add", op("Mul", y, y), op("Matmul", a, c))


def pooled_linear() -> Tensor:
    """mean(x @ w) over the rows."""
    x = op("Matmul", leaf("x", 4, 3), weight("w", 3, 2))
    return op("ReduceMean", x, attrs=((0,), 0))


def residual_block() -> Tensor:
    """relu(bn(conv(x)) + x), where bn normalizes with running statistics."""
    y = conv(weight("w", 3, 3, 3, 3), (1, 1), (1, 1), (1, 1))
    scale, shift = weight("scale", 1, 3, 1, 1), weight("shift", 1, 3, 1, 1)
    return op("Relu", op("Add", op("Add", op("Mul", y, scale), shift), IMAGE))


def conv(w: Tensor, stride: Ints, padding: Ints, dilation: Ints) -> Tensor:
    return op("Conv2d", IMAGE, w, attrs=(stride, padding, dilation, 1))


Ints = tuple[int, ...]


def mlp() -> Tensor:
    """gelu(x @ w + b) @ v + c, over a batch of sequences."""
    hidden = op("Add", op("Matmul", leaf("x", 2, 3, 4), weight("w", 4, 6)), weight("b", 6))
    return op("Add", op("Matmul", op("Gelu", hidden), weight("v", 6, 4)), weight("c", 4))


def shuffled_halves() -> Tensor:
    """A matrix product of two slices that are concatenated in the other order."""
    x = leaf("x", 3, 6)
    left, right = (op("Slice", x, attrs=(1, a, b, 1)) for a, b in ((0, 2), (2, 6)))
    return op("Matmul", op("Concat", right, left, attrs=(1,)), weight("w", 6, 2))


def steps_of_a_loop() -> Tensor:
    """The rows of one tensor, each times the same matrix, then a function."""
    x, w = leaf("x", 3, 1, 4), weight("w", 4, 2)
    rows = [
        op("Reshape", op("Slice", x, attrs=(0, n, n + 1, 1)), attrs=((1, 4),)) for n in range(3)
    ]
    return op("Concat", *(op("Relu", op("Matmul", row, w)) for row in rows), attrs=(0,))


def broadcast_beside() -> Tensor:
    """A matrix product of the sum of a row and a column."""
    rows, columns = leaf("r", 4, 1), leaf("c", 1, 5)
    return op("Matmul", op("Add", rows, columns), weight("w", 5, 3))


def padded_average() -> Tensor:
    """A product with a padded tensor, most of which is zero: sums need its inside only."""
    padded = op("Pad", leaf("x", 3, 2), attrs=((0, 3), (0, 2), 0.0))
    return op("Matmul", padded, weight("v", 7, 2))


def wide_convolution() -> Tensor:
    """A convolution, then a 1x1 convolution, which is a product of matrices."""
    y = conv(weight("w", 2, 3, 3, 3), (1, 1), (1, 1), (1, 1))
    return op("Conv2d", y, weight("v", 2, 2, 1, 1), attrs=((1, 1), (0, 0), (1, 1), 1))


def pad_and_crop() -> Tensor:
    """Views of views: padded, cropped, reshaped twice, shifted and strided."""
    padded = op("Pad", leaf("x", 4, 6), attrs=((1, 2), (1, 0), 0.0))
    cropped = op("Slice", padded, attrs=(0, 1, 5, 1))
    split = op("Reshape", op("Reshape", cropped, attrs=((2, 2, 8),)), attrs=((4, 2, 4),))
    joined = op("Reshape", op("Permute", split, attrs=((1, 0, 2),)), attrs=((8, 4),))
    return op("Stride", op("Shift", op("Relu", joined), attrs=(0, 3)), attrs=(1, 2))


def split_and_merge() -> Tensor:
    """An axis split into blocks, permuted and merged again: a shuffle of channels (Syno)."""
    blocks = op("Split", leaf("x", 2, 6), attrs=(1, 3))
    return op("Relu", op("Merge", op("Permute", blocks, attrs=((0, 2, 1),)), attrs=(1,)))


def views_of_views() -> Tensor:
    """Pairs of Syno's views that equal one view, or two views in another order."""
    x, row = leaf("x", 4, 6), leaf("row", 12)
    blocks, merged = op("Split", row, attrs=(0, 4)), op("Merge", x, attrs=(0,))
    pairs = [
        op("Merge", blocks, attrs=(0,)), op("Split", merged, attrs=(0, 6)),
        op("Split", merged, attrs=(0, 3)), op("Split", merged, attrs=(0, 12)),
        op("Shift", op("Shift", row, attrs=(0, 2)), attrs=(0, 3)), op("Shift", row, attrs=(0, 24)),
        op("Stride", op("Stride", row, attrs=(0, 2)), attrs=(0, 3)),
        op("Stride", row, attrs=(0, 1)),
        op("Expand", op("Expand", leaf("one", 1, 3), attrs=((2, 3),)), attrs=((4, 2, 3),)),
    ]  # fmt: skip
    flat = [op("Reshape", pair, attrs=((pair.type.size,),)) for pair in pairs]
    return op("Concat", *flat, attrs=(0,))


def unfolded_convolution() -> Tensor:
    """Unfold, weigh, sum: a convolution along one axis (Syno)."""
    x = op("Unfold", leaf("x", 2, 6), attrs=(1, 3))
    return op("ReduceSum", op("Mul", x, weight("w", 3)), attrs=((2,), 0))


def reduced_windows() -> Tensor:
    """Windows of sums of blocks, all reduced at the end: rfactor (Syno, Fig. 4)."""
    x = op("Unfold", op("Split", leaf("x", 24), attrs=(0, 4)), attrs=(0, 3))
    blocks = op("Reshape", leaf("y", 12), attrs=((3, 4),))
    whole = op("ReduceSum", blocks, attrs=((0, 1), 0))
    return op("Add", op("ReduceSum", x, attrs=((1, 2), 0)), whole)


def elementwise() -> Tensor:
    """Elementwise operators that cancel or repeat: expansions, negations, activations, a mask."""
    x, y = leaf("x", 2, 3), leaf("y", 3)
    a = op("Neg", op("Neg", op("Relu", op("Relu", op("Expand", x, attrs=((2, 3),))))))
    b = op("Maximum", op("Abs", op("Abs", x)), y)
    return op("Where", op("LessEqual", a, y), a, op("Concat", b, attrs=(0,)))


def scopes_by_hand() -> Tensor:
    """A scope whose body has a term for every law of scalar.egg."""
    read = Read(leaf("x", 2, 3), (it(0, 2), it(1, 3)))
    relu = Call("relu", (read,))
    parts = (
        Call("relu", (relu,)), Call("abs", (relu,)), Call("abs", (Call("abs", (read,)),)),
        Call("max", (read, Num(0))), Call("max", (Num(0), Call("sin", (read,)))),
        Call("max", (read, read)), Call("min", (read, read)), Value(it(1, 3)),
    )  # fmt: skip
    return Scope((2, 3), (), Sum(parts))


def indices_by_hand() -> Tensor:
    """A scope whose body has a term for every law of index.egg. No other law rewrites the term
    before its own law does."""
    h, w, c = it(0, 4), it(1, 6), it(2, 3)
    flat = h * 18 + w * 3 + c
    at = [
        (h * 6 + w) // 6, (h * 6 + w) % 6, flat // 3 % 6, flat // 18, flat // 3 // 6,
        ((w - 2) // 2) // 3, (flat % 18) // 3, (flat % 18) % 3, (w * 2) // 4, (w * 4) // 2,
        (w * 4) % 2, (w - 9) // 2 * 2 + (w - 9) % 2, (w - 9) // 2 * 6 + (w - 9) % 2 * 3,
        (w - 9) // 2 * 2 + (w - 9) % 2 + h, (w - 9) // 2 * 6 + (w - 9) % 2 * 3 + c,
        ((h * 2 + 4) // 2) * 3, (h * 2 + 4) % 2, (h * 6 + w) // 6 * 5 + w, Index(0) + w // 6,
        ((h * 6 + w * 6) // 6) * 2 + c, (w * 6 + 12) // 6 * 3,
        w.minimum(7), (w + 1).maximum(0), w.minimum(4).minimum(3), w.maximum(1).maximum(2),
        w.minimum(4).maximum(1), (w * 3).minimum(6), (w * 3).maximum(6), (w * -3).minimum(-6),
        (w * -3).maximum(-6), (w - 2).minimum(1) // 2, (w - 2).maximum(-1) // 2,
        w + w % 6, w * 2 + w % 6, w - w % 6, w * 2 + w % 6 * 3,
        w + w % 6 + 1, w * 2 + w % 6 + 1, w - w % 6 + 1, w * 2 + w % 6 * 3 + 1,
    ]  # fmt: skip
    return Scope((4, 6, 3), (), Sum(tuple(map(Value, at))))


def one_of_a_batch() -> Tensor:
    """The second of two products of stacked matrices."""
    left = op("Concat", leaf("a", 1, 3, 4), leaf("b", 1, 3, 4), attrs=(0,))
    right = op("Concat", leaf("c", 1, 4, 2), leaf("d", 1, 4, 2), attrs=(0,))
    return op("Slice", op("Matmul", left, right), attrs=(0, 1, 2, 1))


def taps_apart() -> Tensor:
    """The sum of two convolutions, each by one row of a kernel of two rows."""
    x, w = leaf("x", 1, 2, 4, 4), leaf("w", 3, 2, 2, 3, constant=True)

    def row(r: int) -> Tensor:
        image = op("Slice", x, attrs=(2, r, r + 3, 1))
        kernel = op("Slice", w, attrs=(2, r, r + 1, 1))
        return op("Conv2d", image, kernel, attrs=((1, 1), (0, 1), (1, 1), 1))

    return op("Add", row(0), row(1))


def doubled() -> Tensor:
    """A constant kernel and a pooled image, each added to itself."""
    x, ninth = leaf("x", 1, 2, 4, 4), op("Full", attrs=((2, 1, 3, 3), 1 / 9, "float32"))
    kernel = op("Add", ninth, ninth)
    filtered = op("Conv2d", x, kernel, attrs=((1, 1), (1, 1), (1, 1), 2))
    return op("Add", filtered, filtered)


def max_of_views() -> Tensor:
    """A maximum over a padded, expanded view; the padding is -inf and never wins."""
    padded = op("Pad", leaf("x", 4, 5), attrs=((0, 1), (0, 1), -INF))
    image = op("Reshape", padded, attrs=((1, 1, 4, 7),))
    return op("MaxPool2d", image, attrs=((2, 3), (2, 2), (1, 0), (1, 1)))


def odd_extents() -> Tensor:
    """Expanded axes that are reduced: sums and products over what the body doesn't use."""
    x = op("Expand", leaf("x", 2, 1, 1), attrs=((2, 3, 2),))
    prod, total = (op(n, x, attrs=((1,), 0)) for n in ("ReduceProd", "ReduceSum"))
    return op("Add", prod, op("Mul", total, op("ReduceMin", x, attrs=((1,), 0))))


def counted_bools() -> Tensor:
    """Bools that are added to a float are numbers; bools that are added to each other aren't."""
    p, q = leaf("p", 3, dtype="bool"), leaf("q", 3, dtype="bool")
    beside = op("Add", op("Add", leaf("f", 3), p), q)
    return op("Add", beside, op("Add", p, q))


def narrow_integers() -> Tensor:
    """uint8 arithmetic that wraps before its result is multiplied by a float."""
    u, v = leaf("u", 4, dtype="uint8"), leaf("v", 4, dtype="uint8")
    wrapped = op("Mul", op("Neg", op("Sub", u, v)), leaf("f", 4))
    counted = op(
        "ReduceSum", op("Expand", leaf("n", 4, 1, dtype="int32"), attrs=((4, 3),)), attrs=((1,), 0)
    )
    return op("Add", wrapped, counted)


def weighted_sum() -> Tensor:
    """A product of three reads, two of them constant, over padded windows."""
    i, k, m = it(0, 4), it(1, 3), it(2, 2)
    x = Read(leaf("x", 4, 2), (i + k - 1, m))
    w, s = Read(weight("w", 3, 2), (k, m)), Read(weight("s", 2), (m,))
    return Scope((4,), (3, 2), Prod((x, w, s)))


def every_elementwise() -> Tensor:
    """One operator of each name, on the pieces of a concatenation."""
    x = op("Abs", leaf("x", 3))
    rows = [r for r in OPERATORS.values() if r.kind == "elementwise" and not r.attrs]
    pieces = [Op(r.name, (x,) * (r.arity or 0)) for r in rows if r.name != "Where"]
    return op("Concat", *pieces, attrs=(0,))


def grouped_conv(groups: int, stride: Ints = (1, 1), dilation: Ints = (1, 1)) -> Tensor:
    x, w = leaf("x", 1, 4, 5, 4), weight("w", 4, 4 // groups, 3, 2)
    return op("Conv2d", x, w, attrs=(stride, (1, 1), dilation, groups))


def transposed_conv(stride: Ints, dilation: Ints = (1, 1), groups: int = 1) -> Tensor:
    x, w = leaf("x", 1, 4, 3, 2), weight("w", 4, 6 // groups, 3, 2)
    return op("ConvTranspose2d", x, w, attrs=(stride, (1, 0), (0, 0), dilation, groups))


def band_attention(dilation: int = 2, softmax: bool = False) -> Tensor:
    """GBMM(softmax(G2BMM(q, k)), v), sliding-window attention; with relu if not ``softmax``."""
    q, k, v = (leaf(name, 2, 6, 3) for name in "qkv")
    band = op("G2BMM", q, k, attrs=(1, dilation))
    weights = op("Softmax", band, attrs=(2,)) if softmax else op("Relu", band)
    return op("GBMM", weights, v, attrs=(dilation,))


def windowed_attention() -> Tensor:
    """softmax(q k' in a band, -inf elsewhere) v, and 0 in rows without any element of the band. The
    band is `ones.tril(1).triu(-1)`. This is how torch decomposes attention under a mask."""
    q, k, v = (leaf(name, 8, 3) for name in "qkv")
    apart = op("Sub", *(op("Iota", attrs=((8, 8), axis, "int64")) for axis in (1, 0)))
    one, less = (op("Full", attrs=((), number, "int64")) for number in (1.0, -1.0))
    true, false = (op("Full", attrs=(s, b, "bool")) for s, b in (((8, 8), 1.0), ((), 0.0)))
    lower = op("Where", op("LessEqual", apart, one), true, false)
    seen = op("Where", op("GreaterEqual", apart, less), lower, false)
    low, zero = (op("Full", attrs=((), number, "float32")) for number in (float("-inf"), 0.0))
    scores = op("Where", seen, op("Matmul", q, op("Permute", k, attrs=((1, 0),))), low)
    hidden = op("Equal", op("ReduceMax", scores, attrs=((1,), 1)), low)
    return op("Matmul", op("Where", hidden, zero, op("Softmax", scores, attrs=(1,))), v)


def biased_chain() -> Tensor:
    """mean((x @ u + p) @ v + q) over the rows."""
    x = op("Add", op("Matmul", leaf("x", 4, 3), weight("u", 3, 5)), weight("p", 5))
    y = op("Add", op("Matmul", x, weight("v", 5, 2)), weight("q", 2))
    return op("ReduceMean", y, attrs=((0,), 0))


def squared_distances(rows: int = 4, others: int = 2, width: int = 3) -> Tensor:
    """The squared distance of each row of x from each row of y."""
    x = op("Reshape", leaf("x", rows, width), attrs=((rows, 1, width),))
    apart = op("Sub", x, leaf("y", others, width))
    square = op("Pow", apart, op("Full", attrs=((), 2.0, "float32")))
    return op("ReduceSum", square, attrs=((2,), 0))


def normalized_attention() -> Tensor:
    """(e / sum e) @ v, and the product scaled by a number."""
    e = op("Exp", leaf("s", 3, 4))
    p = op("Div", e, op("ReduceSum", e, attrs=((1,), 1)))
    half = op("Full", attrs=((), 2.0, "float32"))
    return op("Div", op("Matmul", p, leaf("v", 4, 2)), half)


def repeated_rows() -> Tensor:
    """Products with repeated rows: each row three times, and the whole block three times."""
    x = leaf("x", 2, 3)
    each = op("Expand", op("Reshape", x, attrs=((2, 1, 3),)), attrs=((2, 3, 3),))
    block = op("Expand", op("Reshape", x, attrs=((1, 2, 3),)), attrs=((3, 2, 3),))
    rows = [op("Reshape", r, attrs=((6, 3),)) for r in (each, block)]
    return op("Add", *(op("Matmul", r, weight("w", 3, 4)) for r in rows))


def identity_matrix(dtype: str = "float32") -> Tensor:
    """x @ eye @ ones."""
    i, j = (op("Iota", attrs=((3, 3), axis, "int64")) for axis in (0, 1))
    eye = op("Cast", op("Equal", i, j), attrs=(dtype,))
    ones = op("Full", attrs=((3, 2), 1.0, dtype))
    return op("Matmul", op("Matmul", leaf("x", 2, 3, dtype=dtype), eye), ones)


def diagonal_matrix() -> Tensor:
    """where(i == j, d, 0) @ x."""
    i, j = (op("Iota", attrs=((3, 3), axis, "int64")) for axis in (0, 1))
    d = op("Reshape", leaf("d", 3), attrs=((1, 3),))
    zero = op("Full", attrs=((), 0.0, "float32"))
    return op("Matmul", op("Where", op("Equal", i, j), d, zero), leaf("x", 3, 2))


def shifted_diagonal() -> Tensor:
    """where(i == j + 1, d, 0) @ x, where d has one value for each row."""
    i, j = (op("Iota", attrs=((3, 3), axis, "int64")) for axis in (0, 1))
    one = op("Full", attrs=((3, 1), 1.0, "int64"))
    zero = op("Full", attrs=((), 0.0, "float32"))
    diagonal = op("Where", op("Equal", i, op("Add", j, one)), leaf("d", 3, 1), zero)
    return op("Matmul", diagonal, leaf("x", 3, 2))


def sum_of_products() -> Tensor:
    """(b @ c + d @ e) @ x: two small products, or one of the whole matrix."""
    b, d = leaf("b", 6, 1), leaf("d", 6, 1)
    c, e = leaf("c", 1, 6), leaf("e", 1, 6)
    return op("Matmul", op("Add", op("Matmul", b, c), op("Matmul", d, e)), leaf("x", 6, 2))


def triangle(comparison: str) -> Op:
    """The bools ``j <= i``, or of another comparison of columns and rows."""
    rows, columns = (op("Iota", attrs=((4, 4), axis, "int64")) for axis in (0, 1))
    return op(comparison, columns, rows)


def causal_products() -> Tensor:
    """tril(q @ k') @ v: each row is multiplied with the sum of the products before it."""
    q, k, v = (leaf(name, 4, 2) for name in "qkv")
    scores = op("Matmul", q, op("Permute", k, attrs=((1, 0),)))
    below = op("Where", triangle("LessEqual"), scores, op("Full", attrs=((), 0.0, "float32")))
    return op("Matmul", below, v)


def mask_of_numbers() -> Tensor:
    """where(m == 0, 0, q @ k') @ v, where m = tril(ones) is a triangle of numbers."""
    q, k, v = (leaf(name, 4, 2) for name in "qkv")
    scores = op("Matmul", q, op("Permute", k, attrs=((1, 0),)))
    zero, ones = op("Full", attrs=((), 0.0, "float32")), op("Full", attrs=((4, 4), 1.0, "float32"))
    hidden = op("Equal", op("Where", triangle("LessEqual"), ones, zero), zero)
    return op("Matmul", op("Where", hidden, zero, scores), v)


def diagonals() -> Tensor:
    """(where(i == j, a, 0) + where(i == j + 1, b, 0) + eye) @ x, which is no matrix product."""
    i, j = (op("Iota", attrs=((6, 6), axis, "int64")) for axis in (0, 1))
    one = op("Full", attrs=((6, 1), 1.0, "int64"))
    zero = op("Full", attrs=((), 0.0, "float32"))
    own = op("Where", op("Equal", i, j), leaf("a", 6, 1), zero)
    below = op("Where", op("Equal", i, op("Add", j, one)), leaf("b", 6, 1), zero)
    eye = op("Cast", op("Equal", i, j), attrs=("float32",))
    return op("Matmul", op("Add", op("Add", own, below), eye), leaf("x", 6, 2))


def second_differences() -> Tensor:
    """(eye(6, k=1) + (eye(6, k=-1) - 2 * eye(6))) @ x, a sum of constants within one."""
    i, j = (op("Iota", attrs=((6, 6), axis, "int64")) for axis in (0, 1))
    one, two = op("Full", attrs=((6, 1), 1.0, "int64")), op("Full", attrs=((), 2.0, "float32"))
    eye, above, below = (
        op("Cast", op("Equal", a, b), attrs=("float32",))
        for a, b in ((i, j), (op("Add", i, one), j), (i, op("Add", j, one)))
    )
    inner = op("Sub", below, op("Mul", eye, two))
    return op("Matmul", op("Add", above, inner), leaf("x", 6, 2))


def sums_from_the_end() -> Tensor:
    """where(j < i, 0, 1) @ x: the sums of the rows from each row on."""
    none, ones = (op("Full", attrs=((), value, "float32")) for value in (0.0, 1.0))
    return op("Matmul", op("Where", triangle("Less"), none, ones), leaf("x", 4, 3))


def sums_of_rows() -> Tensor:
    """float32(j <= i) @ x: the sums of the rows up to each row."""
    return op("Matmul", op("Cast", triangle("LessEqual"), attrs=("float32",)), leaf("x", 4, 3))


def running_sum() -> Tensor:
    """cumsum(x @ w, 0)[:3]: of three rows, and of x, which is narrower than its product."""
    x, w = leaf("x", 5, 2), leaf("w", 2, 6)
    return op("Slice", op("CumSum", op("Matmul", x, w), attrs=(0,)), attrs=(0, 0, 3, 1))


def sums_of_running_sums() -> Tensor:
    """cumsum(x) + cumsum(y) - cumsum(z)."""
    x, y, z = (op("CumSum", leaf(name, 4, 3), attrs=(0,)) for name in "xyz")
    return op("Sub", op("Add", x, y), z)


def rows_in_reverse() -> Tensor:
    """t[2 - i]: the rows of a table at computed positions."""
    places = Scope((3,), (), Value(it(0, 3) * -1 + 2))
    return op("Embedding", leaf("t", 3, 2), places)


def one_hot_rows() -> Tensor:
    """[i = j] cast to integers, then to floats."""
    i, j = (op("Iota", attrs=((3, 3), axis, "int64")) for axis in (0, 1))
    return op("Cast", op("Cast", op("Equal", i, j), attrs=("int64",)), attrs=("float32",))


def one_hot_product() -> Tensor:
    """``one_hot(ids).float() @ w``: rows of w."""
    i, j = (op("Iota", attrs=((200, 200), axis, "int64")) for axis in (0, 1))
    identity = op("Cast", op("Equal", i, j), attrs=("int64",))
    one_hot = op("Embedding", identity, leaf("ids", 2, dtype="int64"))
    return op("Matmul", op("Cast", one_hot, attrs=("float32",)), weight("w", 200, 3))


def enlarged_convolution() -> Tensor:
    """A 3x3 convolution of an image in which each pixel is there twice, both ways."""
    twice = op("Expand", op("Reshape", leaf("x", 1, 2, 3, 2), attrs=((1, 2, 3, 1, 2, 1),)),
        attrs=((1, 2, 3, 2, 2, 2),))  # fmt: skip
    image = op("Reshape", twice, attrs=((1, 2, 6, 4),))
    return op("Conv2d", image, weight("w", 3, 2, 3, 3), attrs=((1, 1), (1, 1), (1, 1), 1))


def conditioned_convolution() -> Tensor:
    """A padded convolution of an image beside one value a channel, the same at each pixel."""
    condition = op("Expand", op("Reshape", leaf("z", 1, 6), attrs=((1, 6, 1, 1),)),
        attrs=((1, 6, 4, 5),))  # fmt: skip
    image = op("Concat", leaf("x", 1, 2, 4, 5), condition, attrs=(1,))
    return op("Conv2d", image, weight("w", 2, 8, 3, 3), attrs=((1, 1), (1, 1), (1, 1), 1))


def layer(x: Tensor) -> Tensor:
    """``x @ w + b``."""
    return op("Add", op("Matmul", x, weight("w", 3, 4)), weight("b", 4))


def difference_of_layers() -> Tensor:
    """One layer of two inputs: the bias falls away."""
    return op("Sub", layer(leaf("x", 2, 3)), layer(leaf("y", 2, 3)))


def mean_of_layers() -> Tensor:
    """The mean of two stacked layers: a sum of sums that a derivation makes."""
    layers = [op("Reshape", layer(leaf(n, 2, 3)), attrs=((1, 2, 4),)) for n in "xy"]
    return op("ReduceMean", op("Concat", *layers, attrs=(0,)), attrs=((0,), 0))


def looked_up_rows() -> Tensor:
    """Rows of a product, picked by ids, and a product of rows of a table, picked by ids."""
    ids = leaf("ids", 2, dtype="int64")
    rows = op("Embedding", op("Matmul", leaf("a", 200, 3), leaf("b", 3, 2)), ids)
    table = op("Embedding", weight("t", 200, 3), ids)
    return op("Add", rows, op("Matmul", table, weight("w", 3, 2)))


def parallel_convolutions() -> Tensor:
    """The sum of a 3x3 convolution of an image, a 1x1 convolution of it, and the image."""
    wide = conv(weight("w3", 3, 3, 3, 3), (1, 1), (1, 1), (1, 1))
    narrow = conv(weight("w1", 3, 3, 1, 1), (1, 1), (0, 0), (1, 1))
    return op("Add", op("Add", wide, narrow), IMAGE)


def shared_input() -> Tensor:
    """Three products of one input, one of them twice, and two convolutions of one image."""
    x = leaf("x", 3, 4)
    a, b, c = (op("Matmul", x, weight(name, 4, n)) for name, n in (("a", 2), ("b", 3), ("c", 2)))
    products = op("Concat", op("Relu", a), op("Tanh", b), op("Relu", c), a, attrs=(1,))
    w, v = weight("w", 2, 3, 3, 3), weight("v", 1, 3, 3, 3)
    y, z = (conv(k, (1, 1), (1, 1), (1, 1)) for k in (w, v))
    images = op("Concat", op("Relu", y), op("Tanh", z), attrs=(1,))
    flat = op("Reshape", images, attrs=((3, 30),))
    return op("Concat", products, flat, attrs=(1,))


def flattened_patches() -> Tensor:
    """A convolution by im2col: the patches are reshaped, so that three reduced axes become one."""
    h, v, c, r, s = it(0, 3), it(1, 4), it(2, 2), it(3, 3), it(4, 3)
    patches = Scope((3, 4, 2, 3, 3), (), Read(leaf("x", 2, 3, 4), (c, h + r - 1, v + s - 1)))
    matrix = op("Reshape", patches, attrs=((12, 18),))
    return op("Matmul", matrix, weight("w", 18, 2))


WINDOW: tuple[Ints, ...] = ((2, 1), (1, 2), (1, 2))
SLIDING = ((1, 1), (0, 0), (1, 1))


def windows_by_tiles() -> Tensor:
    """A convolution with so many channels that computing it by tiles is less work."""
    image, filters = leaf("x", 1, 16, 4, 4), weight("w", 16, 16, 3, 3)
    return op("Conv2d", image, filters, attrs=((1, 1), (1, 1), (1, 1), 1))


def sum_of_slices() -> Tensor:
    """A stencil as torch code has it: the sum of nine slices of a padded image, one a tap."""
    padded = op("Pad", leaf("x", 4, 5), attrs=((1, 1), (1, 1), 0.0))
    total: Tensor | None = None
    for r in range(3):
        for s in range(3):
            rows = op("Slice", padded, attrs=(0, r, r + 4, 1))
            tap = op("Slice", rows, attrs=(1, s, s + 5, 1))
            total = tap if total is None else op("Add", total, tap)
    assert total is not None
    return total


def taken_off() -> Tensor:
    """relu(x @ a) + relu(x @ b) - relu(x @ a), of which relu(x @ b) is left."""
    x = leaf("x", 4, 3)
    first, second = (op("Relu", op("Matmul", x, leaf(name, 3, 5))) for name in "ab")
    return op("Sub", op("Add", first, second), first)


PROGRAMS: dict[str, Callable[[], Tensor]] = {
    "chain": lambda: chain(6),
    "attention": attention,
    "distributivity": distributivity,
    "square": square_beside_product,
    "pooled-linear": pooled_linear,
    "residual-block": residual_block,
    "strided-conv": lambda: conv(weight("w", 2, 3, 2, 3), *WINDOW),
    "grouped-conv": lambda: grouped_conv(2, (2, 1), (1, 2)),
    "depthwise-conv": lambda: grouped_conv(4),
    "transposed-conv": lambda: transposed_conv((2, 3)),
    "grouped-transposed-conv": lambda: transposed_conv((2, 1), (1, 2), groups=2),
    "band-attention": band_attention,
    "windowed-attention": windowed_attention,
    "band-softmax": lambda: band_attention(softmax=True),
    "biased-chain": biased_chain,
    "weighted-mean": weighted_mean,
    "scaled-layer": scaled_layer,
    "standardized-layer": standardized_layer,
    "taken-off": taken_off,
    "squared-distances": squared_distances,
    "normalized-attention": normalized_attention,
    "repeated-rows": repeated_rows,
    "identity-matrix": identity_matrix,
    "identity-matrix-64": lambda: identity_matrix("float64"),
    "diagonal-matrix": diagonal_matrix,
    "shifted-diagonal": shifted_diagonal,
    "sum-of-products": sum_of_products,
    "looked-up-rows": looked_up_rows,
    "causal-products": causal_products,
    "mask-of-numbers": mask_of_numbers,
    "diagonals": diagonals,
    "second-differences": second_differences,
    "sums-from-the-end": sums_from_the_end,
    "sums-of-rows": sums_of_rows,
    "running-sum": running_sum,
    "sums-of-running-sums": sums_of_running_sums,
    "chosen-rows": chosen_rows,
    "masked-rows": masked_rows,
    "filled-rows": filled_rows,
    "filled-product": filled_product,
    "masked-columns": masked_columns,
    "unless": unless,
    "picked-along": picked_along,
    "rows-in-reverse": rows_in_reverse,
    "reversed-rows": lambda: op("Matmul", op("Reverse", leaf("x", 4, 3), attrs=((0,),)),
        weight("w", 3, 2)),
    "one-hot-rows": one_hot_rows,
    "one-hot-product": one_hot_product,
    "enlarged-convolution": enlarged_convolution,
    "conditioned-convolution": conditioned_convolution,
    "difference-of-layers": difference_of_layers,
    "mean-of-layers": mean_of_layers,
    "sum-of-slices": sum_of_slices,
    "parallel-convolutions": parallel_convolutions,
    "large-window": lambda: conv(weight("w", 2, 3, 5, 4), (1, 1), (2, 1), (1, 1)),
    "shared-input": shared_input,
    "flattened-patches": flattened_patches,
    "softmax": lambda: op("Softmax", leaf("x", 3, 4), attrs=(1,)),
    "pooling": lambda: op("AvgPool2d", IMAGE, attrs=((2, 3), *WINDOW[:2], (1, 1))),
    "max-pooling": lambda: op("MaxPool2d", IMAGE, attrs=((3, 3), (1, 1), (1, 1), (1, 1))),
    "padded-maximum": lambda: op("ReduceMax", op("Pad", leaf("x", 4, 5),
        attrs=((2, 1), (0, 3), -INF)), attrs=((1,), 0)),
    "pooled-twice": lambda: op("MaxPool2d", op("MaxPool2d", IMAGE, attrs=((3, 2), *SLIDING)),
        attrs=((2, 2), *SLIDING)),
    "mlp": mlp,
    "layer-norm": layer_norm,
    "layer-norm-operator": lambda: op("Matmul", op("LayerNorm", leaf("x", 2, 3, 4),
        weight("g", 3, 4), weight("h", 3, 4), attrs=(2, 1e-3)), weight("w", 4, 2)),
    "shuffled-halves": shuffled_halves,
    "steps-of-a-loop": steps_of_a_loop,
    "part-of-a-normalization": part_of_a_normalization,
    "largest": lambda: op("ReduceMax", op("Relu", leaf("x", 3, 4)), attrs=((1,), 0)),
    # Through the function, and then through the sum inside of it.
    "largest-of-sums": lambda: op("ReduceMax", op("Relu", op("Add", leaf("x", 3, 4),
        leaf("y", 3, 1))), attrs=((1,), 0)),
    "broadcast": broadcast_beside,
    "padded-sum": padded_average,
    "wide-convolution": wide_convolution,
    "pad-and-crop": pad_and_crop,
    "split-and-merge": split_and_merge,
    "views-of-views": views_of_views,
    "unfold": unfolded_convolution,
    "reduced-windows": reduced_windows,
    "elementwise": elementwise,
    "every-elementwise": every_elementwise,
    "scalars": scopes_by_hand,
    "indices": indices_by_hand,
    "one-of-a-batch": one_of_a_batch,
    "taps-apart": taps_apart,
    "doubled": doubled,
    "max-of-views": max_of_views,
    "odd-extents": odd_extents,
    "narrow-integers": narrow_integers,
    "counted-bools": counted_bools,
    "weighted-sum": weighted_sum,
    "upsampled-product": lambda: op("Conv2d", op("UpsampleBilinear2d", leaf("x", 1, 6, 8, 8),
        attrs=((16, 16), 0)), weight("w", 2, 6, 1, 1), attrs=(*SLIDING, 1)),
    "upsampling": lambda: op("UpsampleBilinear2d", leaf("x", 1, 2, 3, 2), attrs=((4, 5), 0)),
    "windows-by-tiles": windows_by_tiles,
    **ATTENDING,
    # softmax(a[i] + b[j]) over j is softmax(b), once for all rows
    "shifted-softmax": lambda: op(
        "Softmax",
        op("Add", op("Reshape", leaf("a", 6), attrs=((6, 1),)), leaf("b", 5)),
        attrs=(1,),
    ),
    "transposed-products": lambda: op("Matmul", op("Permute", op("Matmul", leaf("a", 2, 3),
        leaf("b", 3, 4)), attrs=((1, 0),)), leaf("c", 2, 5)),
}  # fmt: skip


def saturate(root: Tensor, rules: RuleSet = RULES, limits: Limits = LIMITS) -> EGraph:
    return saturate_terms((root,), rules, PROVE_PHASES, limits, True)


@cache
def saturated(name: str) -> EGraph:
    """The e-graph of a program, saturated with the default rules. ``test_programs.py`` checks that
    all members of each e-class are equal."""
    return once(f"saturated-{name}", lambda: saturate(PROGRAMS[name]()))


def least_flops(graph: EGraph) -> int:
    """The least FLOPs of a plan that extraction finds."""
    profile = Profile("none", path=None)
    try:
        costs = CostModel(measure_cpu_target(), profile, "flops")
        found = extract(graph, (TorchBackend({}),), costs, lambda ks, _: dict.fromkeys(ks), 60.0)
    finally:
        profile.close()
    return sum(flops(step.kernel.term) for step in found.plan.steps)
