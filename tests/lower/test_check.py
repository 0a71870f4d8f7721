"""Comparing a program with the original: what is rounding, and what is a difference."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eqsynth.errors import EquivalenceError
from eqsynth.lower import reruns
from eqsynth.lower.check import check_equivalence
from eqsynth.lower.kinds import KINDS
from eqsynth.lower.reruns import SUMS, Reference, unchanged

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def module(function: Callable[..., Any], **state: Tensor) -> nn.Module:
    class Wrapped(nn.Module):
        forward = function

    made = Wrapped()
    for name, value in state.items():
        made.register_buffer(name, value)
    return made.eval()


def test_the_same_is_no_difference() -> None:
    found = check_equivalence(lambda x: x @ x.T, lambda x: x @ x.T, (X,))
    assert found.error_rel == 0.0 and found.tried == len(KINDS)


def test_another_order_of_additions_is_rounding() -> None:
    a, b, c = (torch.randn(64, 64) for _ in range(3))
    found = check_equivalence(
        lambda x, y, z: x @ (y @ z), module(lambda self, x, y, z: (x @ y) @ z), (a, b, c)
    )
    assert 0 < found.error_rel < 1e-4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x * 1.001,
        lambda x: x + 1e-3,
        lambda x: -x,
        lambda x: x.flip(0),
        lambda x: torch.where(x > 9, 0.0, x),  # right on inputs around zero
        lambda x: x.clamp(-60, 60),  # right on all but large ones
        lambda x: torch.zeros_like(x),
        lambda x: x * float("nan"),
        lambda x: x.double(),
        lambda x: x[:-1],
    ],
)
def test_a_wrong_program_is_an_error(wrong: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(EquivalenceError) as caught:
        check_equivalence(wrong, module(lambda self, x: x * 1), (X,))
    assert "output 0" in caught.value.where and caught.value.got and caught.value.expected


def test_a_wrong_program_of_integers_is_an_error() -> None:
    n = torch.arange(-6, 6)
    check_equivalence(lambda x: x // 2, module(lambda self, x: x // 2), (n,))
    with pytest.raises(EquivalenceError):
        check_equivalence(
            lambda x: (x / 2).trunc().long(), module(lambda self, x: x // 2), (n,)
        )  # fmt: skip


def test_a_lost_digit_is_a_difference() -> None:
    """|x - y|^2 as x.x - 2 x.y + y.y is exact over the reals, and wrong on near-equal inputs."""
    original = module(lambda self, x, y: ((x - y) ** 2).sum())
    with pytest.raises(EquivalenceError):
        check_equivalence(
            lambda x, y: (x * x).sum() - 2 * (x * y).sum() + (y * y).sum(), original, (X, X + 0.5)
        )


def test_cancelling_sums_and_ties_are_rounding() -> None:
    x = torch.tensor([1e8, 1.0, -1e8, 0.3, 7.7, -9.1])
    check_equivalence(lambda x: x.flip(0).cumsum(0)[-1], module(lambda self, x: x.sum()), (x,))
    # Half way between two integers: no rounding of the sum is better than the other.
    half = torch.arange(64) + 0.5
    check_equivalence(
        lambda x: (x * (1 + 2**-22)).round(), module(lambda self, x: x.round()), (half,)
    )
    with pytest.raises(EquivalenceError):
        check_equivalence(
            lambda x: (x + 2).round(), module(lambda self, x: x.round()), (half,)
        )  # fmt: skip


def _normalized(x: Tensor, table: Tensor, products: Callable[[Tensor], Tensor]) -> Tensor:
    """Products of rows that are all alike, and so all one number, normalized: 0."""
    rows = table[(x.sum(-1) * 0).long()]
    return nn.functional.layer_norm(products(rows), (4,))


def test_one_sum_in_two_places_may_round_twice() -> None:
    table = torch.randn(1, 7, generator=torch.Generator().manual_seed(3))
    right = module(lambda self, x: _normalized(x, self.table, lambda r: r @ r.T), table=table)

    def another_order(rows: Tensor) -> Tensor:
        halves = rows[:, :3] @ rows[:, :3].T, rows[:, 3:] @ rows[:, 3:].T
        return torch.where(torch.eye(4) > 0, halves[0] + halves[1], rows @ rows.T)

    found = check_equivalence(lambda x: _normalized(x, table, another_order), right, (X,))
    assert found.error_rel > 0

    with pytest.raises(EquivalenceError):
        # Far more than a rounding.
        check_equivalence(
            lambda x: _normalized(x, table, lambda r: r @ r.T + 1e-4 * torch.eye(4)), right, (X,)
        )


def test_a_rounding_on_the_way_that_no_input_moves() -> None:
    """x / (1 + x) around 1e4 is some neighbour of 1, and normalized it is the difference of two."""
    x = torch.tensor([[10000.25, 10000.5], [10003.0, 10001.0]])

    def by_reciprocal(x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x * (1 / (1 + x)), (2,))

    right = module(lambda self, x: nn.functional.layer_norm(x / (1 + x), (2,)))
    found = check_equivalence(by_reciprocal, right, (x,))
    assert found.error_rel > 0.01
    with pytest.raises(EquivalenceError):
        check_equivalence(lambda x: by_reciprocal(x) + 0.5 * (x > 10002), right, (x,))


class Chosen(nn.Module):
    """Of two values the one with the larger score, where scores are far: (n, 2, 64), (2, 64)."""

    def forward(self, x: Tensor, values: Tensor) -> Tensor:
        return torch.softmax(x.sum(-1), -1) @ values


def _other(x: Tensor, values: Tensor) -> Tensor:
    """The other value, if two large scores are 500 roundings apart or less."""
    scores = x.sum(-1)
    near = (scores[:, 0] - scores[:, 1]).abs() <= 500 * torch.finfo(x.dtype).eps * scores[:, 0]
    large = scores.amin(-1) > 1e9
    return torch.softmax(torch.where((near & large)[:, None], scores.flip(-1), scores), -1) @ values


@pytest.mark.parametrize(("apart", "fails"), [(5, False), (100, True)])
def test_roundings_of_a_sum_decide_between_near_scores(apart: int, fails: bool) -> None:
    """A sum of 64 terms is off by some roundings, and a program may take the other of two scores
    that are as near; but not where they are far apart."""
    x = torch.full((24, 2, 64), 1e8)
    x[:, 1, 0] -= apart * torch.finfo(x.dtype).eps * 64 * 1e8
    values = torch.stack((torch.linspace(1, 2, 64), torch.linspace(3, 4, 64))) + 0.01
    with pytest.raises(EquivalenceError) if fails else nullcontext():
        check_equivalence(_other, Chosen().eval(), (x, values))


def test_infinite_and_missing_values_must_be_where_they_were() -> None:
    x = torch.tensor([0.0, 1.0, -1.0])
    check_equivalence(lambda x: 1 / x, module(lambda self, x: 1 / x), (x,))
    check_equivalence(lambda x: x.sqrt(), module(lambda self, x: x.sqrt()), (x,))
    with pytest.raises(EquivalenceError):
        check_equivalence(lambda x: (1 / x).abs(), module(lambda self, x: 1 / x), (x,))
    with pytest.raises(EquivalenceError):
        check_equivalence(lambda x: x.abs().sqrt(), module(lambda self, x: x.sqrt()), (x,))


def test_buffers_are_compared_and_given_back() -> None:
    n = torch.zeros(3)

    def counting(step: float) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            n.add_(step)
            return x

        return call

    check_equivalence(counting(1), counting(1), (X,), state=(n,))
    assert torch.equal(n, torch.zeros(3))
    with pytest.raises(EquivalenceError) as caught:
        check_equivalence(counting(2), counting(1), (X,), state=(n,))
    assert "output 1" in caught.value.where
    assert torch.equal(n, torch.zeros(3))
    with pytest.raises(ZeroDivisionError), unchanged([n]):
        n.add_(1)
        raise ZeroDivisionError
    assert torch.equal(n, torch.zeros(3))


def test_inputs_are_not_touched() -> None:
    x = X.clone()
    check_equivalence(lambda x: x.add_(1), lambda x: x.add_(1), (x,))
    assert torch.equal(x, X)


# ---- what only shows on some inputs ------------------------------------------------------------


def small_row(x: Tensor) -> Tensor:
    """A wrong row, small beside the others: 1e-3 where the largest is 1e6."""
    y = x * torch.tensor([1e6, 1.0, 1e-3, 1.0])[:, None]
    return torch.where(torch.arange(4)[:, None] == 2, y * 1.01, y)


def test_a_wrong_small_row_beside_a_large_one_is_an_error() -> None:
    right = module(lambda self, x: x * torch.tensor([1e6, 1.0, 1e-3, 1.0])[:, None])
    with pytest.raises(EquivalenceError) as caught:
        check_equivalence(small_row, right, (X,))
    assert caught.value.where.startswith("output 0[2, ")


def test_a_wrong_small_element_in_the_row_of_a_large_one_is_an_error() -> None:
    scale = torch.tensor([1e6, 1.0, 1.0, 1.0, 1.0, 1e-6])
    with pytest.raises(EquivalenceError) as caught:
        check_equivalence(
            lambda x: x * scale + torch.tensor([0.0, 0, 0, 0, 0, 1e-7]),
            module(lambda self, x: x * scale), (X,),
        )  # fmt: skip
    assert ", 5]" in caught.value.where


@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_a_program_that_is_wrong_far_from_zero_only_is_an_error(offset: float) -> None:
    def wrong(x: Tensor) -> Tensor:
        return torch.where((x - offset).abs() < 100, x * (1 + 1e-3), x)

    with pytest.raises(EquivalenceError) as caught:
        check_equivalence(wrong, module(lambda self, x: x * 1), (X,))
    assert f"offset {offset:.0e}".replace("e+0", "e") in caught.value.where


def test_an_index_other_than_those_given() -> None:
    """Only row 37 of the table is wrong; the example has rows 1, 2 and 3."""
    table = torch.randn(50, 4)
    wrong = table.clone()
    wrong[37] += 1
    given = torch.tensor([[1, 2, 3]] * 60)
    right = module(lambda self, n: nn.functional.embedding(n, table))
    check_equivalence(lambda n: table[n], right, (given,))
    with pytest.raises(EquivalenceError):
        check_equivalence(lambda n: wrong[n], right, (given,))


def test_inputs_in_lists_and_dicts_and_by_name() -> None:
    def right(self: Any, x: Any, *, y: dict[str, Any]) -> Tensor:
        return x[0] + y["a"][1]  # type: ignore[no-any-return]

    def wrong(x: Any, *, y: dict[str, Any]) -> Tensor:
        return x[0] + y["a"][1].clamp(max=50)  # type: ignore[no-any-return]

    args, kwargs = ([X],), {"y": {"a": (3, X)}}
    check_equivalence(lambda x, y: x[0] + y["a"][1], module(right), args, kwargs)
    with pytest.raises(EquivalenceError):
        check_equivalence(wrong, module(right), args, kwargs)


def test_bools_vary() -> None:
    given = torch.ones(4, 6, dtype=torch.bool)
    right = module(lambda self, x, m: torch.where(m, x, 0.0))
    with pytest.raises(EquivalenceError):
        check_equivalence(lambda x, m: x * 1, right, (X, given))


def test_a_program_that_fails_where_the_original_does_not() -> None:
    def failing(x: Tensor) -> Tensor:
        if x.abs().max() > 100:
            raise ValueError("too large")
        return x

    with pytest.raises(EquivalenceError) as caught:
        check_equivalence(failing, module(lambda self, x: x), (X,))
    assert "ValueError: too large" in caught.value.got


class Touchy(torch.nn.Module):
    """Fails on about half of all inputs, whichever way they are rounded, as the inverse of a matrix
    that is singular up to rounding does."""

    def forward(self, x: Tensor) -> Tensor:
        if int(x.sum().view(torch.int32)) % 2:
            raise ValueError("singular")
        return 2 * x


def test_where_the_original_fails_nearby_the_program_may_fail() -> None:
    given = torch.ones(40)

    def fails(x: Tensor) -> Tensor:
        if not torch.equal(x, given):
            raise ValueError("singular")
        return x + x

    assert check_equivalence(fails, Touchy().eval(), (given,)).tried > 1
    with pytest.raises(EquivalenceError, match="fails where the original doesn't"):
        check_equivalence(fails, Touchy().eval(), (0.7 * given,))


def test_a_product_in_another_order_may_underflow_elsewhere() -> None:
    class Multiplied(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.prod()

    def by_lanes(x: Tensor) -> Tensor:
        lanes = x.reshape(-1)[:16].clone()
        lanes[:8] *= x.reshape(-1)[16:]
        while len(lanes) > 1:
            lanes = lanes.reshape(2, -1).prod(0)
        return lanes.squeeze(0)

    x = torch.rand(4, 6) + 0.1
    check_equivalence(by_lanes, Multiplied().eval(), (x,))
    with pytest.raises(EquivalenceError):
        check_equivalence(lambda x: by_lanes(x) * 1.001, Multiplied().eval(), (x,))


def test_inputs_that_the_original_refuses_are_left_out() -> None:
    def picky(self: Any, x: Tensor) -> Tensor:
        if x.abs().max() > 100:
            raise ValueError("too large")
        return x * 2

    found = check_equivalence(lambda x: x + x, module(picky), (X,))
    assert found.tried == len(KINDS) - 3


def test_a_graph_that_refuses_inputs_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    graph = torch.fx.symbolic_trace(module(lambda self, x, at: x[at]))
    at = torch.tensor([0, 3])
    check_equivalence(lambda x, at: torch.index_select(x, 0, at % 4), graph, (X, at))
    assert capfd.readouterr() == ("", "")


def test_digits_that_are_lost_are_told_where_that_is_allowed() -> None:
    original = module(lambda self, x, y: ((x - y) ** 2).sum(-1))

    def spread(x: Tensor, y: Tensor) -> Tensor:
        return (x * x).sum(-1) - 2 * (x * y).sum(-1) + (y * y).sum(-1)

    def noisy(values: Any, seed: int) -> list[Tensor]:
        g = torch.Generator().manual_seed(seed)
        (x, y), _ = values
        off = [1 + 5e-7 * torch.randn(x.shape, generator=g) for _ in range(3)]
        parts = (x * x * off[0]).sum(-1), (x * y * off[1]).sum(-1), (y * y * off[2]).sum(-1)
        return [parts[0] - 2 * parts[1] + parts[2]]

    with pytest.raises(EquivalenceError):
        check_equivalence(spread, original, (X, X + 0.5))
    found = check_equivalence(spread, original, (X, X + 0.5), noisy=noisy)
    assert found.lost["near-equal"] > 1e-3 and "random" not in found.lost
    with pytest.raises(EquivalenceError):  # what isn't rounding is no matter of digits
        check_equivalence(lambda x, y: 1.01 * spread(x, y), original, (X, X + 0.5), noisy=noisy)


def test_a_float64_module_and_one_that_is_none_in_float64() -> None:
    weight = torch.randn(6, 3)
    narrow = module(lambda self, x: x @ weight)  # no parameter, so float64 inputs don't fit
    check_equivalence(lambda x: (weight.T @ x.T).T, narrow, (X,))
    wide = weight.double()
    check_equivalence(lambda x: (wide.T @ x.T).T, lambda x: x @ wide, (X.double(),))
    for call, x, w in ((narrow, X, weight), (lambda x: x @ wide, X.double(), wide)):
        error = 1e-4 if x.dtype == torch.float32 else 1e-12
        with pytest.raises(EquivalenceError):
            check_equivalence(lambda x, w=w, e=error: x @ w * (1 + e), call, (x,))


def test_complex_weights_and_inputs_are_moved_and_widened() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))
    net = module(lambda self, x: (x @ self.weight).abs())
    net.weight = weight
    x = torch.randn(4, 6, dtype=torch.complex64)
    reference = Reference(net)
    exact = reference.exact(((x,), {}))
    assert exact is not None and exact[0].dtype == torch.float64
    wide = (x.to(torch.complex128) @ weight.to(torch.complex128)).abs()
    torch.testing.assert_close(exact[0], wide.detach(), rtol=1e-14, atol=0)
    size = Reference(module(lambda self, x: x.abs()))
    for original, values in ((reference, torch.full_like(x, 2 + 1j)), (size, x)):
        (expected,), moved = original(((values,), {})), original.moved(((values,), {}), 0)
        assert moved is not None
        assert 0 < float((moved[0] / expected - 1).abs().max()) < 1e-5
    assert torch.equal(weight, net.weight)


def test_the_original_runs_a_few_times_a_kind() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    flat = [layer.weight.double() for layer in (net[0], net[2])]

    def other(x: Tensor) -> Tensor:  # other roundings everywhere
        y = nn.functional.conv2d(x.double(), flat[0], net[0].bias.double())
        y = nn.functional.conv2d(y.relu(), flat[1], net[2].bias.double())
        return y.float()

    found = check_equivalence(other, net, (torch.randn(2, 3, 16, 16),))
    assert found.tried < found.runs <= 6 * found.tried


def test_weights_that_were_moved_before_are_moved_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every kind of inputs asks for the same moves, some of which are kept: with room for one, for
    all, and for none."""
    layers = torch.nn.Linear(30, 40), torch.nn.GELU(), torch.nn.Linear(40, 5)
    module, x = torch.nn.Sequential(*layers).eval(), torch.randn(3, 30)
    size = sum(weight.nbytes for weight in module.parameters())

    def asked(room: int) -> list[torch.Tensor]:
        monkeypatch.setattr("eqsynth.lower.reruns._KEPT", room)
        reference, made = Reference(module), list[int]()
        real = reruns._off
        with monkeypatch.context() as patch:
            patch.setattr(reruns, "_off", lambda w, f: made.append(1) or real(w, f))
            found = [
                result
                for kind in range(3)
                for seed in (0, 1, 2, SUMS)
                for result in reference.moved(((x * (kind + 1),), {}), seed) or ()
            ]
        moves.append(len(made) // len(list(module.parameters())))
        return found

    moves: list[int] = []
    none, one, every = asked(0), asked(size), asked(1 << 20)
    # What is computed on the way is moved as well for the last seed, whose weights aren't kept.
    assert moves == [12, 10, 6]
    assert all(map(torch.equal, none, one)) and all(map(torch.equal, none, every))
    assert not torch.equal(none[0], none[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("factor", "fails"), [(1.0, False), (1 + 1e-3, True)])
def test_the_sum_in_gelu_is_rounded(dtype: torch.dtype, factor: float, fails: bool) -> None:
    """gelu(x) is x / 2 * (1 + erf(x / √2)) in torch, whose sum cancels, and by erfc it isn't."""
    x = (torch.linspace(-5, 3, 65, dtype=dtype)[1:-1] + 0.01)[:, None]

    def by_erfc(x: Tensor) -> Tensor:
        return factor * x / 2 * torch.erfc(-x / 2**0.5)

    with pytest.raises(EquivalenceError) if fails else nullcontext():
        check_equivalence(by_erfc, nn.GELU(), (x,))
