"""Attention under a mask that is known goes over the places that the mask lets through."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import eqsynth
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Op
from eqsynth.ir.tensor import Tensor as Term
from eqsynth.numerics import rules_of

RULES = rules_of((), "real", where="test")
LOWEST = torch.finfo(torch.float32).min


class Masked(nn.Module):
    def __init__(self, mask: Callable[[int], Tensor], attend: str = "where") -> None:
        super().__init__()
        self.mask, self.attend = mask, attend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = self.mask(q.shape[1])
        if self.attend == "torch":
            return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        hidden = LOWEST if "lowest" in self.attend else -math.inf
        if "sum" in self.attend:
            scores = scores + torch.where(seen, 0.0, hidden)
        else:
            scores = scores.masked_fill(~seen, hidden)
        return torch.softmax(scores, -1) @ v


def apart(n: int) -> Tensor:
    return torch.arange(n)[:, None] - torch.arange(n)[None, :]


def band(n: int) -> Tensor:
    return apart(n).abs() <= 2


def every_second(n: int) -> Tensor:
    return (apart(n).abs() <= 4) & (apart(n) % 2 == 0)


def last_few(n: int) -> Tensor:
    return (apart(n) >= 0) & (apart(n) < 5)


def blocks(n: int) -> Tensor:
    return torch.arange(n)[:, None] // 4 == torch.arange(n)[None, :] // 4


def tril_and_triu(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril().triu(-3)


def causal(n: int) -> Tensor:
    return apart(n) >= 0


def few_before(n: int) -> Tensor:
    return (apart(n) > 0) & (apart(n) < 5)


def inputs() -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 24, 4) for _ in range(3))


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("mask", "attend", "fires"),
    [
        (band, "where", True),
        (band, "sum", True),
        (band, "torch", True),
        (every_second, "where", True),
        (last_few, "torch", True),
        (blocks, "where", True),
        (tril_and_triu, "where", True),
        (causal, "where", False),
        (blocks, "lowest", True),
        (band, "lowest sum", True),
        # The first row sees nothing: all of its weights are equal.
        (few_before, "lowest", False),
        (few_before, "where", True),
    ],
)
def test_a_mask_that_lets_few_places_through_is_seen(
    mask: Callable[[int], Tensor], attend: str, fires: bool
) -> None:
    program = capture(Masked(mask, attend).eval(), inputs()).program
    graph = saturate_terms(program.outputs, RULES, DEFAULT_PHASES, Limits(), False)
    assert ("restrict" in graph.matches) == fires and not graph.faults


def nano_gpt(s: Tensor, n: int) -> Tensor:
    return s.masked_fill(torch.tril(torch.ones(n, n)) == 0, -math.inf)


CAUSAL: dict[str, Callable[[Tensor, int], Tensor]] = {
    "compared": nano_gpt,
    "counted": lambda s, n: torch.where(causal(n), s, LOWEST),
    "filled above": lambda s, n: s.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf),
    "added": lambda s, n: s + torch.full((n, n), -math.inf).triu(1),
    "added, the lowest": lambda s, n: s + (1 - torch.ones(n, n).tril()) * LOWEST,
    "of more axes": lambda s, n: torch.where(causal(n)[None, None], s, -math.inf),
}
NOT_CAUSAL: dict[str, Callable[[Tensor, int], Tensor]] = {
    "one further": lambda s, n: s.masked_fill(torch.ones(n, n).triu(2).bool(), -math.inf),
    "what comes after": lambda s, n: s.masked_fill(torch.ones(n, n).tril(-1).bool(), -math.inf),
    "not low enough": lambda s, n: torch.where(causal(n), s, -1e4),
    "other scores": lambda s, n: torch.where(causal(n), s, s - 1e4),
}


class Scored(nn.Module):
    """Four heads, and a function of their scores."""

    def __init__(self, scored: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.scored = scored

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(self.scored(scores, q.shape[-2]), -1) @ v


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("forms", "matches"), [(CAUSAL, True), (NOT_CAUSAL, False)], ids=["causal", "not causal"]
)
def test_a_causal_mask_in_any_form_is_causal_attention(
    forms: dict[str, Callable[[Tensor, int], Tensor]], matches: bool
) -> None:
    given = tuple(torch.randn(1, 2, 12, 4) for _ in "qkv")
    wrong = []
    for name, scored in forms.items():
        program = capture(Scored(scored).eval(), given).program
        graph = saturate_terms(program.outputs, RULES, DEFAULT_PHASES, Limits(), False)
        found = [members for members in graph.classes.values() if any(map(_is_causal, members))]
        if bool(found) != matches or graph.faults:
            wrong.append(name)
    assert not wrong


def _is_causal(member: Term) -> bool:
    return isinstance(member, Op) and member.name == "CausalAttention"


@pytest.mark.rotating
def test_causal_attention_written_by_hand_is_computed_as_such() -> None:
    module = Scored(nano_gpt).eval()
    given = tuple(torch.randn(1, 2, 12, 4) for _ in "qkv")
    program = eqsynth.optimize(module, given, engines=(), progress=False, certify=True)
    torch.testing.assert_close(program(*given), module(*given))


@pytest.mark.rotating
def test_a_wide_band_of_many_places_is_seen() -> None:
    module = Masked(lambda n: (apart(n).abs() <= 300) & (apart(n) % 4 == 0)).eval()
    program = capture(module, tuple(torch.randn(1, 1024, 2) for _ in range(3))).program
    graph = saturate_terms(program.outputs, RULES, DEFAULT_PHASES, Limits(), False)
    assert "restrict" in graph.matches and not graph.faults


@pytest.mark.rotating
def test_every_fourth_place_is_a_window() -> None:
    """``j = i % 4 + 4 * w``; the mask stands between two functions, and no cut beside it."""
    module = Weighted(lambda s, m, v: torch.relu(torch.sigmoid(s) * (apart(16) % 4 == 0)) @ v)
    given = tuple(torch.randn(1, 16, 8) for _ in "qkv")
    program = eqsynth.optimize(module.eval(), given, objective="flops", engines=(), progress=False)
    assert program.report.flops_after <= 1.1 / 4 * program.report.flops_before
    torch.testing.assert_close(program(*given), module(*given))


@pytest.mark.rotating
def test_windowed_attention_takes_the_work_of_its_window() -> None:
    module, given = Masked(band).eval(), inputs()
    program = eqsynth.optimize(module, given, objective="flops", engines=(), progress=False)
    report = program.report
    assert report.flops_after <= 5 / 24 * 1.05 * report.flops_before
    torch.testing.assert_close(program(*given), module(*given))


@pytest.mark.rotating
def test_the_lowest_number_hides_as_an_infinity() -> None:
    """As transformers writes masks: ``masked_fill(~seen, torch.finfo(dtype).min)``."""
    module, given = Masked(band, "lowest").eval(), inputs()
    program = eqsynth.optimize(module, given, objective="flops", engines=(), progress=False)
    report = program.report
    assert report.flops_after <= 5 / 24 * 1.05 * report.flops_before
    torch.testing.assert_close(program(*given), module(*given))


class Weighted(nn.Module):
    """Values that are added up, or of which the largest is taken, under a mask."""

    def __init__(self, compute: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.compute(q @ k.transpose(-1, -2), band(q.shape[1]), v)


def normalized(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


HIDDEN: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "times a mask": lambda s, m, v: (s * m) @ v,
    "chosen": lambda s, m, v: torch.where(m, s, 0.0) @ v,
    "filled": lambda s, m, v: s.masked_fill(~m, 0.0) @ v,
    "a function of what is masked": lambda s, m, v: torch.relu(s * m).square() @ v,
    "a mask of a function": lambda s, m, v: (torch.relu(s) * m) @ v,
    "a function of -inf": lambda s, m, v: torch.sigmoid(s.masked_fill(~m, -math.inf)) @ v,
    "normalized": lambda s, m, v: normalized(torch.sigmoid(s) * m) @ v,
    "sum": lambda s, m, v: (torch.relu(s) * m).sum(-1),
    "largest": lambda s, m, v: s.masked_fill(~m, -math.inf).amax(-1),
    "smallest of each key": lambda s, m, v: s.masked_fill(~m, math.inf).amin(-2),
    "logarithm of a sum": lambda s, m, v: torch.logsumexp(s.masked_fill(~m, -math.inf), -1),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_mask_hides_is_not_computed(name: str) -> None:
    """A window of 5 of 48 places."""
    module, given = Weighted(HIDDEN[name]).eval(), tuple(torch.randn(2, 48, 16) for _ in "qkv")
    program = eqsynth.optimize(module, given, objective="flops", engines=(), progress=False)
    report = program.report
    assert report.flops_after <= 5 / 48 * 1.25 * report.flops_before
    torch.testing.assert_close(program(*given), module(*given), rtol=1e-4, atol=1e-5)


class Rows(nn.Module):
    """Two layers; behind the first one rows are masked."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        masked: Tensor = self.second(self.first(x).masked_fill(hidden[:, None], 0.0))
        return masked


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_masked_rows_may_hold_anything(value: float) -> None:
    """The two layers become one, and rows that the mask hides still don't matter."""
    module, x, hidden = Rows().eval(), torch.randn(16, 8), torch.arange(16) % 3 == 0
    program = eqsynth.optimize(
        module, (x, hidden), objective="flops", engines=(), progress=False, strict=True
    )
    assert 8 * program.report.flops_after <= program.report.flops_before
    x[hidden] = value
    with torch.no_grad():
        torch.testing.assert_close(program(x, hidden), module(x, hidden), rtol=1e-4, atol=1e-5)
