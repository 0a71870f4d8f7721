"""The notation of comprehensions: their meaning, and errors of texts that aren't comprehensions."""

from __future__ import annotations

import pytest

from eqsynth.errors import EqsynthError, RuleError
from eqsynth.ir.notation import instantiate
from eqsynth.ir.operators import Attr
from eqsynth.ir.tensor import Op
from tests.terms import assert_equal, leaf, op

_CONV = """(x, w; s, t, p, q, d, g) [n, f, i, j] =
         sum(c, k, l) x[n, c, s*i + d*k - p, t*j + g*l - q] * w[f, c, k, l]"""
_POOL = """(x; k, l, s, t, p, q, d, g) [n, c, i, j] =
         max(k, l) x[n, c, s*i + d*k - p, t*j + g*l - q else -inf]"""
_SOFTMAX = """(a) [*n, i] = e[*n, i] / s[*n]
              where m[*n] = max(i) a[*n, i]
              where e[*n, i] = exp(a[*n, i] - m[*n])
              where s[*n] = sum(i) e[*n, i]"""
_NORM = """(a, b, c; r) [*n, *m:r] = d[*n, *m] * rsqrt(v[*n] + 1 / 2) * b[*m] + c[*m]
           where u[*n] = mean(*m) a[*n, *m]
           where d[*n, *m] = a[*n, *m] - u[*n]
           where v[*n] = mean(*m) d[*n, *m] * d[*n, *m]"""
_ATTRS: tuple[Attr, ...] = ((2, 1), (1, 0), (1, 2))
DEFINED: list[tuple[Op, str, tuple[int, ...]]] = [
    (op("Add", leaf("a", 2, 1), leaf("b", 3)), "(a, b) [*n] = a[^n] + b[^n]", ()),
    (op("Sub", leaf("a", 2, 1), leaf("b")), "(a, b) [*n] = a[^n] - b[^n]", ()),
    (op("Neg", leaf("a", 2, 3)), "(a) [*n] = -a[*n]", ()),
    (op("LogicalAnd", leaf("a", 2), leaf("b", 1)), "(a, b) [*n] = and_(a[^n], b[^n])", ()),
    (op("Div", leaf("a", 2), leaf("b", 2)), "(a, b) [*n] = a[*n] / b[*n]", ()),
    (op("Matmul", leaf("a", 4, 1, 2, 3), leaf("b", 5, 3, 1)),
     "(a, b) [*n, i, j] = sum(k) a[^n, i, k] * b[^n, k, j]", ()),
    (op("Conv2d", leaf("a", 1, 2, 5, 6), leaf("b", 3, 2, 3, 2), attrs=(*_ATTRS, 1)), _CONV,
     (2, 1, 1, 0, 1, 2)),
    (op("MaxPool2d", leaf("a", 1, 2, 5, 6), attrs=((3, 2), *_ATTRS)), _POOL,
     (3, 2, 2, 1, 1, 0, 1, 2)),
    (op("AvgPool2d", leaf("a", 1, 2, 5, 6), attrs=((3, 2), *_ATTRS)),
     _POOL.replace("max", "mean").replace(" else -inf", ""), (3, 2, 2, 1, 1, 0, 1, 2)),
    (op("ReduceSum", leaf("a", 2, 3, 4), attrs=((1, 2), 0)), "(a) [i] = sum(*k) a[i, *k]", ()),
    (op("Iota", attrs=((2, 3), 1, "int64")), "() [i, j] = j", ()),
    (op("Slice", leaf("a", 2, 6), attrs=(1, 1, 6, 2)), "(a; r) [*b:r, i] = a[*b, 2*i + 1]", (1,)),
    (op("Shift", leaf("a", 3), attrs=(0, -1)), "(a) [i] = a[(i - 1) % 3]", ()),
    (op("Reshape", leaf("a", 2, 3), attrs=((6,),)), "(a) [i] = a[i // 3, i % 3]", ()),
    (op("Softmax", leaf("a", 2, 1, 3), attrs=(2,)), _SOFTMAX, ()),
    (op("CumSum", leaf("a", 2, 3, 4), attrs=(1,)),
     "(x; a, k) [*n:a, i, *m] = sum(k) x[*n, i - k, *m]", (1, 3)),
    (op("LayerNorm", leaf("a", 2, 3, 4), leaf("b", 3, 4), leaf("c", 3, 4), attrs=(2, 0.5)),
     _NORM, (2,)),
    (op("LayerNorm", leaf("a", 3, 1), leaf("b", 1), leaf("c", 1), attrs=(1, 0.5)), _NORM, (1,)),
    (op("LayerNorm", leaf("a", 3), leaf("b", 3), leaf("c", 3), attrs=(1, 0.5)), _NORM, (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("term", "text", "numbers"), DEFINED, ids=lambda v: getattr(v, "name", ""))
def test_a_comprehension_means_its_operator(term: Op, text: str, numbers: tuple[int, ...]) -> None:
    assert_equal(term, instantiate(text, term.args, numbers, term.shape))


@pytest.mark.parametrize(
    "text",
    [
        "a[i]",
        "(a) [i] a[i]",
        "(a, b) [i] = a[i] + b[i]",
        "(a; s) [i] = a[s*i]",
        "(a) [i, j] = a[i]",
        "(a) [i] = a[i",
        "(a) [i] = a[j]",
        "(a) [i] = a[i*i]",
        "(a) [i] = a[i // 0]",
        "(a) [i] = a[i % -2]",
        "(a) [i] = cumsum(a[i])",
        "(a) [i] = b[i]",
        "(a) [i] = sum(k) a[i + k]",
        "(a) [i] = a[i] if i else 0",
        "(a) [i] = b[i] where a[i] = a[i]",
        "(a) [i] = b[i] where b[i] a[i]",
        "(a) [i] = b[i] where b[j] = a[j]",
        "(a) [i] = b[i] where b[i] = sum(i) a[i]",
        "(a) [i] = b[i] where b[i] = c[i] where c[i] = a[i]",
        "(a) [i] = b[2 - i] where b[i] = a[i]",
    ],
)
def test_what_is_no_comprehension_is_refused(text: str) -> None:
    with pytest.raises(RuleError) as caught:
        instantiate(text, [leaf("a", 3)], [], (3,))
    assert caught.value.got == text


def test_a_comprehension_with_the_wrong_rank_is_refused() -> None:
    with pytest.raises(EqsynthError):
        instantiate("(a) [i] = a[i, i]", [leaf("a", 3)], [], (3,))
