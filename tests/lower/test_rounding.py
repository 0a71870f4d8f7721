"""Whether rounding explains a difference, element by element."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eqsynth.lower.reruns import off_by_rounding
from eqsynth.lower.rounding import LONGER, RERUNS, SUMS, Evidence, distance, judge, largest_error

Function = Callable[[Tensor], Tensor]


def evidence(right: Function, x: Tensor, exact: bool = True) -> Evidence:
    return Evidence(
        moved=lambda seed: [right(off_by_rounding(x, seed=seed))],
        exact=lambda: [right(x.double())] if exact else None,
    )


def wrong(mine: Function, right: Function, x: Tensor, exact: bool = True) -> bool:
    found = judge([mine(x)], [right(x)], evidence(right, x, exact)).wrong
    return found is not None


SUM = torch.tensor([[1e8, 1.0, -1e8, 0.3], [1e-8, 1e-9, 1e-8, 2e-9]])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("mine", "right", "x"),
    [
        # A sum that cancels, in another order; the row beside it doesn't cancel.
        (lambda x: x.flip(-1).cumsum(-1)[:, -1], lambda x: x.cumsum(-1)[:, -1], SUM),
        # Whole numbers, of which a sum cancels.
        (lambda x: x.flip(0).cumsum(0)[-1], lambda x: x.cumsum(0)[-1],
         torch.tensor([1.0, 1e8, -1e8, 3.0])),
        # Half way between two integers.
        (lambda x: (x * (1 + 2**-22)).round(), lambda x: x.round(), torch.arange(9) / 2 + 1e-7),
        (lambda x: x.div(3), lambda x: x * (1 / 3), torch.rand(100)),
        (lambda x: (x * 3).argmax(-1), lambda x: x.argmax(-1), torch.rand(4, 5)),
        # One of two that tie.
        (lambda x: (x * (1 + 1e-7 * torch.arange(3))).argmax(-1), lambda x: x.argmax(-1),
         torch.full((3,), 0.7)),
        # A zero has no sign.
        (lambda x: 1 / torch.where(x == 0, -x, x), lambda x: 1 / x, torch.tensor([0.0, 2.0])),
    ],
)  # fmt: skip
def test_rounding(mine: Function, right: Function, x: Tensor, exact: bool) -> None:
    assert not wrong(mine, right, x, exact)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("mine", "right", "x"),
    [
        # The second row doesn't cancel, and the rounding of the first is no excuse for it.
        (lambda x: x.sum(-1) + 1e-12, lambda x: x.sum(-1), SUM),
        (lambda x: x.sum(-1) + 99, lambda x: x.sum(-1), SUM),
        (lambda x: x * (1 + 1e-4), lambda x: x * 1, torch.rand(100)),
        (lambda x: x + 1e-3, lambda x: x * 1, torch.tensor([1e6, 1e-6])),
        (lambda x: x.argmin(-1), lambda x: x.argmax(-1), torch.rand(4, 5)),
        (lambda x: x > 0.5, lambda x: x > 0.6, torch.linspace(0, 1, 50)),
        (lambda x: x.abs().sqrt(), lambda x: x.sqrt(), torch.tensor([-1.0, 1.0])),
        (lambda x: torch.where(x > 0, x, torch.nan), lambda x: x * 1, torch.randn(9)),
        (lambda x: (1 / x).abs(), lambda x: 1 / x, torch.tensor([1e-3, -1e-3])),
        # Whole numbers, which aren't moved.
        (lambda x: x @ x + 1, lambda x: x @ x, torch.arange(9.0).reshape(3, 3)),
        (lambda x: x[0].long(), lambda x: x[1].long(), torch.arange(9.0).reshape(3, 3)),
    ],
)
def test_no_rounding(mine: Function, right: Function, x: Tensor, exact: bool) -> None:
    assert wrong(mine, right, x, exact)


@pytest.mark.parametrize(("off", "fails"), [(9, False), (70, True)])
def test_below_the_normal_numbers_a_rounding_stays_as_large(off: int, fails: bool) -> None:
    step = torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    right = step * torch.arange(16.0)  # 6e-7, where float16 counts by 6e-8
    (mine, right) = (x.half() for x in (right + off * step, right))
    found = judge([mine], [right], Evidence(lambda _: [right], lambda: [right.double()]))
    assert (found.wrong is not None) is fails


def in_a_row(a: Tensor, b: Tensor) -> Tensor:
    """Products added up one after the other in float32."""
    result = torch.zeros(a.shape[:-1])
    for k in range(a.shape[-1]):
        result += a[..., k] * b[..., k]
    return result


def test_what_a_sum_may_lose_follows_from_its_length() -> None:
    torch.manual_seed(0)
    a, b = 1e6 + torch.randn(2, 8, 16_384)
    right, mine = (a * b).sum(-1), in_a_row(a, b)
    far = distance(mine, right) / right / torch.finfo(torch.float32).eps
    assert 300 < float(far.max())

    def evidence_of(terms: int) -> Evidence:
        def moved(seed: int) -> list[Tensor]:
            return [(off_by_rounding(a, seed=seed) * off_by_rounding(b, seed=99 + seed)).sum(-1)]

        exact = [(a.double() * b.double()).sum(-1)]
        return Evidence(moved, lambda: exact, summed=[terms])

    assert judge([mine], [right], evidence_of(16_384)).wrong is None
    assert judge([mine], [right], evidence_of(512)).wrong is not None


@pytest.mark.parametrize(("terms", "off", "fails"), [
    (0, 50, False), (0, 100, True), (8, 100, True), (2048, 100, False), (2048, 700, True),
])  # fmt: skip
def test_a_short_sum_is_held_to_few_roundings(terms: int, off: int, fails: bool) -> None:
    right = torch.arange(1.0, 9.0)  # of whole numbers, which don't move
    mine = right * (1 + off * torch.finfo(torch.float32).eps)
    for exact in (None, [right.double()]):
        evidence = Evidence(lambda _: [right], lambda e=exact: e, summed=[terms])
        found = judge([mine], [right], evidence)
        assert (found.wrong is not None) is fails


@pytest.mark.parametrize(("terms", "fails"), [(0, True), (4096, False)])
def test_many_terms_that_cancel_one_lose_as_much_as_a_sum_of_their_length(
    terms: int, fails: bool
) -> None:
    """Each partial sum of equal terms is rounded in the same direction, while a rerun moves each
    term in a direction of its own."""
    x = torch.full((4096,), 1.1)

    def right(x: Tensor) -> Tensor:
        return x.sum(-1, keepdim=True) - x[:1] * 4096

    def mine(x: Tensor) -> Tensor:
        return in_a_row(x[None], torch.ones(1, 4096)) - x[:1] * 4096

    reruns = replace(evidence(right, x), summed=[terms])
    assert (judge([mine(x)], [right(x)], reruns).wrong is not None) is fails


@pytest.mark.parametrize(("first", "off", "fails"), [
    (0, 15.0, False), (0, 17.0, True), (SUMS, 7.0, False), (SUMS, 9.0, True)
])  # fmt: skip
def test_an_element_may_be_moved_by_64_roundings(first: int, off: float, fails: bool) -> None:
    """Of the inputs, which reruns move by 4 roundings, and of values on the way, by 8."""
    right, moved = torch.zeros(3), torch.ones(3)
    reruns = Evidence(lambda seed: [moved if (seed >= SUMS) == (first > 0) else right])
    assert (judge([right + off], [right], reruns).wrong is not None) is fails


@pytest.mark.parametrize(
    ("got", "fails"), [(-1.9e-34, False), (0.0, False), (-1.9e-33, True), (-1e-30, True)]
)
def test_a_zero_of_a_factor_that_was_too_small(got: float, fails: bool) -> None:
    """torch's sigmoid(-89) is 0, as exp(89) is too large for float32; silu(-89) * 1e3 is -2e-34."""
    x = torch.full((3,), -89.0)

    def right(x: Tensor) -> Tensor:
        return x.sigmoid() * x * 1e3

    assert wrong(lambda _: torch.full((3,), got), right, x) is fails


@pytest.mark.parametrize(("off", "fails"), [(0.0, False), (1e-5, True)])
def test_a_zero_of_a_term_that_was_lost_to_a_larger_one(off: float, fails: bool) -> None:
    """1 + erf(-4.2) is 0 in float32, and so is torch's gelu(-6); in float64 1 + erf(-6.4) is."""
    x = torch.tensor([[20.0, -4.5, -5.0, -6.0, -7.0, -9.0, -12.0]])
    right = torch.nn.functional.gelu
    assert right(x)[0, 3:].eq(0).all() and right(x.double())[0, 3] < 0
    assert wrong(lambda x: x / 2 * torch.erfc(-x / 2**0.5) - off, right, x) is fails


def test_a_result_without_elements_beside_one_that_differs() -> None:
    x, empty = torch.ones(3), torch.ones(0, 3)
    reruns = Evidence(exact=lambda: [x.double(), empty.double()])
    assert judge([x, empty], [x, empty], reruns).wrong is None
    found = judge([x + 1, empty], [x, empty], reruns).wrong
    assert found is not None and found.output == 0


def test_a_zero_where_the_truth_is_no_tiny_number() -> None:
    def right(x: Tensor) -> Tensor:
        return x * (1e-6 if x.dtype == torch.float64 else 0)

    assert wrong(lambda x: 1e-6 * x, right, torch.ones(3))


def test_what_loses_digits_is_wrong_and_what_the_original_loses_is_not() -> None:
    x = 1e4 + torch.randn(16, 64)

    def unstable(x: Tensor) -> Tensor:
        return (x * x).mean(-1) - x.mean(-1) ** 2

    def stable(x: Tensor) -> Tensor:
        return ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)

    assert wrong(unstable, stable, x)
    assert not wrong(stable, unstable, x)


def test_a_bool_that_is_the_truth_is_right_where_the_original_rounds() -> None:
    """Equal numbers have no deviation; in float32 their mean isn't one of them."""
    x = torch.full((2, 7), 0.1)

    def right(x: Tensor) -> Tensor:
        return (x - x.sum(-1, keepdim=True) / 7).abs().amax(-1) > 0

    assert bool(right(x).all()) and not bool(right(x.double()).any())
    assert not wrong(lambda x: right(x.double()), right, x)
    assert wrong(lambda x: right(x.double()), right, x, exact=False)
    assert wrong(lambda x: ~right(x), right, torch.rand(2, 7))


def test_a_module_that_does_something_else_in_float64_is_no_truth() -> None:
    x = torch.rand(50)

    def original(x: Tensor) -> Tensor:
        return x * (2.0 if x.dtype == torch.float64 else 1.0)

    assert wrong(lambda x: x * 2.0, original, x)
    assert wrong(lambda x: x * 1.5, original, x)


def test_what_overflows_may_be_any_infinity_or_nan() -> None:
    x = torch.tensor([60.0, 1.0])
    square = evidence(lambda x: x.exp() ** 2, x)
    right = x.exp() ** 2
    assert right.isinf().any()
    for value, fails in ((torch.nan, False), (torch.inf, False), (1.0, True)):
        got = torch.tensor([value, right[1]])
        assert (judge([got], [right], square).wrong is not None) is fails


def test_the_worst_element_is_told() -> None:
    x = torch.ones(2, 3)
    off = x.clone()
    off[0, 1], off[1, 2] = 1.001, 1.01
    found = judge([x, off], [x, x]).wrong
    assert found is not None and (found.output, found.index) == (1, (1, 2))
    assert found.got == pytest.approx(1.01) and found.expected == 1 and found.allowed < 1e-4
    assert str(found) == "output 1[1, 2]"


def test_reruns_are_few_and_end() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 300, 300)
    runs = []

    def moved(seed: int) -> list[Tensor]:
        runs.append(seed)
        return [off_by_rounding(a, seed=seed) @ off_by_rounding(b, seed=100 + seed)]

    other = (a.double() @ b.double()).float()
    assert judge([other], [a @ b], Evidence(moved)).wrong is None
    assert 0 < len(runs) < 6
    runs.clear()
    assert judge([other + 1], [a @ b], Evidence(moved)).wrong is not None
    assert len(runs) < RERUNS


@pytest.mark.parametrize("never", [False, True])
def test_the_last_of_many_jumps_is_waited_for(never: bool) -> None:
    """Each of 100,000 elements moves in three of ten reruns, as where a small difference decides;
    an element that never moves is wrong."""
    expected, ran = torch.zeros(100_000, 1), list[int]()

    def moved(seed: int) -> list[Tensor]:
        ran.append(seed)
        jumps = torch.rand(expected.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
        jumps[7] &= not never
        return [jumps.float()]

    found = judge([expected + 1], [expected], Evidence(moved=moved)).wrong
    assert (found is not None) == never and (found is None or found.index == (7, 0))
    assert 2 * RERUNS < len(ran) <= (1 + LONGER) * RERUNS


def test_whole_numbers_and_zeros_are_not_moved() -> None:
    mask = torch.tensor([0.0, 1.0, -3.0, 0.0])
    assert all(torch.equal(off_by_rounding(mask, seed=s), mask) for s in range(5))
    signs = torch.stack([off_by_rounding(torch.zeros(50), seed=s) for s in range(5)]).signbit()
    assert signs.any() and not signs.all()
    x = torch.rand(200_000)
    moved = off_by_rounding(x, seed=0)
    far = ((moved - x) / x).abs() / torch.finfo(x.dtype).eps
    assert 2 < float(far.mean()) < 5 and float(far.max()) < 30


def test_numbers_that_are_whole_for_their_size_are_moved() -> None:
    """Between 2**24 and its double float32 has the even numbers only: they say nothing."""
    for size, moves in ((2.0**20, False), (2.0**23, False), (2.0**26, True), (6e9, True)):
        x = (torch.arange(1.0, 65.0) + size).round()
        assert bool((off_by_rounding(x, seed=0) != x).any()) is moves


def test_an_error_of_results_with_gradients_is_told_without_a_warning() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert largest_error(weight, weight + 1) == 0.5
