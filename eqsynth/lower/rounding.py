"""Whether rounding explains that two results differ: all such judgements are made here.

Each element is judged by itself, so that a small output beside a large one counts. How far rounding
may move an element isn't guessed but measured, in this order:

- An element that differs by at most `SURE` roundings of its own size is right, and by more if the
  program adds up many terms one after the other.
- The original runs again with all its floats moved by a few roundings. If `MOVE` roundings move an
  element by d, it may differ by as much as `SURE` roundings would move it, ``SURE / MOVE * d``.
  This covers sums that cancel, ties, and badly conditioned functions.
- If there is still doubt, the original runs in float64, and this result is the truth: an element is
  right if it is at most `FACTOR` times as far from the truth as the original's element is.

Not here: how the original is moved or widened (``reruns.py``), on which inputs (``kinds.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

import torch

from eqsynth.errors import EquivalenceError

SURE: Final = 64.0
"""A difference of at most this many roundings of an element is accepted without doubt:
implementations of a function differ by some roundings, and sums of libraries, which add in blocks,
by some 20, however long the sums are."""

A_TERM: Final = 0.25
"""Further roundings that are accepted for each term that a program adds up one after the other:
terms of one size and sign lose half a rounding of each partial sum, and a partial sum is half of
the sum on average. (Measured: 180 roundings of 512 for 2,048 products around 1e6, 930 of 4,096 for
16,384.)"""

FACTOR: Final = 16.0
"""An element may be this many times as far from the truth as the original's element is."""

MOVE: Final = 4.0
"""In a rerun, inputs and weights are off by about this many roundings."""

_LEAST: Final = SURE * float(torch.finfo(torch.float32).tiny)  # a smaller number may become zero

RERUNS: Final = 12
"""The number of reruns after which an element that differs counts as wrong. An element that differs
by rounding moves by less than a hundredth of its usual distance once in a hundred reruns; most
judgements need none to three reruns."""

FEW: Final = 0.01
"""If at most this part of the elements that differ is left after all reruns, there are ``LONGER``
times as many. A function with jumps (the 20 nearest of points at about one distance) explains the
differences one by one: each rerun settles some four fifths of those that are left, and the last of
10,000 may take 30 reruns. Elements of a wrong program don't move by themselves."""

LONGER: Final = 4

SUMS: Final = 2 * RERUNS
"""Reruns with this seed or a larger one also move the values that the original computes on the
way."""

ON_THE_WAY: Final = 8.0
"""By how many roundings such reruns move those values.

Not by one rounding, since a small difference may decide: a softmax takes one of two scores of 6e9
that are 4 roundings apart, and a move by one rounding hardly ever changes which. Libraries round as
often as our loops: scores of 64 products, by MKL and by torch's bands, were off by 2 to 3
roundings, and each of the two took another score than float64 in 1 to 2 of 100 rows. Not by 16: an
original that is itself moved may come out a little nearer."""

Results = Sequence[torch.Tensor]
Rerun = Callable[[int], Results | None]


@dataclass(frozen=True)
class Evidence:
    """Further results that the judge may ask for where an original and a program differ; all on the
    same inputs.

    Attributes:
        moved: the original's results with every float off by a few roundings, by a seed; None if it
            can't be run so. Whole numbers stay exact, except for seeds from ``RERUNS`` to ``SUMS``,
            which are used only if nothing else moves. Seeds from ``SUMS`` on also move the values
            that the original computes on the way.
        exact: the original's results in float64; None if it can't be run in float64.
        noisy: the program's own results with each of its intermediate values off by a few
            roundings. Given only where digits may be lost: a difference that it explains is
            reported, and is no error.
        overflows: whether the inputs are so large that infinities in the original's results mean
            nothing.
        summed: for each result, how many terms the program adds up one after the other on the way
            to an element (``stepping.summed``); empty if it isn't known.
    """

    moved: Rerun = lambda _seed: None
    exact: Callable[[], Results | None] = lambda: None
    noisy: Rerun | None = None
    overflows: bool = False
    summed: Sequence[int] = ()


@dataclass(frozen=True)
class Wrong:
    """The worst element that rounding doesn't explain.

    Attributes:
        index: the element's place in output number ``output``.
        allowed: the largest difference that rounding would explain.
    """

    output: int
    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float

    def __str__(self) -> str:
        at = f"[{', '.join(map(str, self.index))}]"
        return f"output {self.output}{at if self.index else ''}"


@dataclass(frozen=True)
class Judgement:
    """The outcome of ``judge``.

    Attributes:
        wrong: the worst wrong element; None if there is none.
        lost: the largest difference, relative to the largest value of its row, among elements that
            only the program's own rounding explains.
    """

    wrong: Wrong | None = None
    lost: float = 0.0


@dataclass
class _Output:
    """One output under judgement: which elements are in doubt, and by how much each may differ.

    ``roundings`` is the number of roundings by which an element may differ without doubt, and
    ``sure`` the part of its size.
    """

    got: torch.Tensor
    expected: torch.Tensor
    eps: float
    summed: int = 0
    roundings: float = field(init=False)
    sure: float = field(init=False)
    difference: torch.Tensor = field(init=False)
    allowed: torch.Tensor = field(init=False)
    reach: torch.Tensor = field(init=False)  # how far the original's elements moved in reruns
    doubt: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.difference = distance(self.got, self.expected)
        self.roundings = SURE + A_TERM * self.summed
        self.sure = self.roundings * self.eps
        # A subnormal number's rounding is as large as that of the smallest normal number: in
        # float16 6e-8.
        normal = torch.finfo(self.expected.dtype).tiny if self.eps else 0.0
        size = _size(self.expected).clamp_min(normal)
        self.allowed = self.sure * size + (_LEAST if self.eps else 0.0)
        self.reach = torch.zeros_like(self.difference)
        self.settle(self.difference <= self.allowed)

    def settle(self, right: torch.Tensor) -> None:
        """These elements are right, and no longer in doubt."""
        self.doubt = self.doubt & ~right if hasattr(self, "doubt") else ~right

    @property
    def open(self) -> bool:
        """Whether any element is still in doubt."""
        return bool(self.doubt.any())


def judge(got: Results, expected: Results, evidence: Evidence | None = None) -> Judgement:
    """Judge whether results differ by rounding only. The types must agree (``same_types``).

    Args:
        expected: the original's results.

    >>> x = torch.tensor([[1e6], [1e-6]])
    >>> judge([x], [x]).wrong is None, judge([x + 1e-3], [x]).wrong.index
    (True, (1, 0))
    """
    evidence = evidence or Evidence()
    outputs = [
        _Output(g, e, _eps(e), summed or 0)
        for g, e, summed in zip_longest(got, expected, evidence.summed)
    ]
    if not any(output.open for output in outputs):
        return Judgement()
    if evidence.overflows:
        for output in outputs:
            output.settle(~_finite(output.expected))
    in_doubt = _in_doubt(outputs)
    _by_moving(outputs, evidence.moved, range(RERUNS))
    if any(output.open for output in outputs) and not any(o.reach.any() for o in outputs):
        _by_moving(outputs, evidence.moved, range(RERUNS, SUMS))
    if any(output.open for output in outputs):
        _by_truth(outputs, evidence.exact())
    if any(output.open for output in outputs):
        _by_moving(outputs, evidence.moved, range(SUMS, SUMS + RERUNS), ON_THE_WAY)
    if _in_doubt(outputs) <= FEW * in_doubt:
        further = range(SUMS + RERUNS, SUMS + LONGER * RERUNS)
        _by_moving(outputs, evidence.moved, further, ON_THE_WAY)
    lost = 0.0
    if evidence.noisy is not None:
        lost = _by_own_noise(outputs, evidence.noisy)
    return Judgement(_worst(outputs), lost)


def _in_doubt(outputs: Sequence[_Output]) -> int:
    return sum(int(output.doubt.sum()) for output in outputs)


def _by_moving(
    outputs: Sequence[_Output], moved: Rerun, seeds: Sequence[int], by: float = MOVE
) -> None:
    """Rerun the original with its values moved by some roundings, and settle the elements that
    differ by at most as much as the allowed number of roundings may move them."""
    first = 0
    for seed in seeds:
        # Rows are counted, not elements: where the elements of a row depend on one choice (as in a
        # softmax), they are right or wrong together.
        left = sum(int(_any(output.doubt).sum()) for output in outputs)
        if not left or (seed > seeds[2] and left > max(first / 2, 16)):
            return  # nothing is left, or so many rows that further reruns won't settle them
        first = left if seed == seeds[1] else first
        results = moved(seed)
        if results is None:
            return
        for output, result in zip(outputs, results, strict=True):
            if result.shape == output.expected.shape:
                far = distance(result, output.expected)
                output.reach = torch.maximum(output.reach, far)
                explained = output.roundings / by * output.reach
                output.allowed = torch.maximum(output.allowed, explained)
                output.settle(output.difference <= output.allowed)


def _by_truth(outputs: Sequence[_Output], exact: Results | None) -> None:
    """Settle the elements that are as close to the truth as the original is. Integers and bools are
    settled if they equal the truth, also where the original's don't: `x.std() > 0` of equal numbers
    is False, and torch, which rounds, may give True.

    If nothing moved in the reruns, as where all inputs are whole numbers, the original's largest
    error in a row is taken as the size of rounding there. Without a truth, it is some roundings of
    the row's largest value.
    """
    for position, output in enumerate(outputs):
        still = not bool(output.reach.any())
        if exact is not None and position < len(exact) and not output.eps:
            output.settle(distance(output.got, exact[position]) == 0)
        if exact is None or position >= len(exact) or not output.eps:
            if still:
                output.allowed = torch.maximum(
                    output.allowed, output.sure * _row(_size(output.expected))
                )
                output.settle(output.difference <= output.allowed)
            continue
        truth = exact[position]
        if truth.shape != output.expected.shape or not truth.numel():
            continue
        own, mine = distance(output.expected, truth), distance(output.got, truth)
        size = _size(truth)
        # If the original computes something else in float64 than in its own dtype, the float64
        # result isn't taken as the truth.
        trusted = own <= torch.maximum(output.eps**0.5 * size, FACTOR * output.reach)
        # An error of less than a rounding of the largest element is an original's own, too: torch's
        # gelu(-6) is 0, as 1 + erf(-4.2) is in float32, and -6e-9 in float64.
        largest = float(_size(output.expected).max())
        trusted |= own <= output.eps * largest
        own = torch.where(trusted, own, 0.0)
        near = FACTOR * (_row(own) if still else own)
        moved = torch.maximum(near, FACTOR * output.reach)
        allowed = torch.maximum(moved, output.sure * size)
        output.settle(trusted & (mine <= allowed))
        # The truth has roundings of its own: gelu(-9) is 0 in float64, too, and -1e-18.
        least = FACTOR * torch.finfo(torch.float64).eps * largest
        output.settle((output.expected == 0) & (torch.maximum(size, mine) <= least))
        # If the truth is finite and the original overflowed, any infinity or a value near the truth
        # is right.
        over = _finite(truth) & ~_finite(output.expected)
        output.settle(over & (~_finite(output.got) | (mine <= allowed)))
        # If the original is 0 where the truth is a tiny number, a factor on the way was too small
        # for the dtype: torch's sigmoid(-89) is 0, and silu(-89) * 1000 is -2e-34 in float64.
        tiny = torch.finfo(output.expected.dtype).tiny / output.eps
        output.settle((output.expected == 0) & (size < tiny) & (mine <= size))


def _by_own_noise(outputs: Sequence[_Output], noisy: Rerun) -> float:
    """Settle the elements whose difference the program's own roundings explain; return the largest
    part of a row that was lost."""
    base = noisy(0) if any(output.open for output in outputs) else None
    if base is None:
        return 0.0
    reach = [torch.zeros_like(output.difference) for output in outputs]
    lost = 0.0
    for seed in range(1, RERUNS):
        results = noisy(seed) if any(output.open for output in outputs) else None
        if results is None:
            break
        for n, (output, result) in enumerate(zip(outputs, results, strict=True)):
            reach[n] = torch.maximum(reach[n], distance(result, base[n]))
            output.allowed = torch.maximum(output.allowed, FACTOR * reach[n])
            right = output.doubt & (output.difference <= output.allowed)
            if bool(right.any()):
                part = output.difference / _row(_size(output.expected)).clamp_min(_LEAST)
                lost = max(lost, float(part[right].max()))
            output.settle(right)
    return lost


def _worst(outputs: Sequence[_Output]) -> Wrong | None:
    """The element whose difference exceeds the allowed one by the largest factor; None if none is
    in doubt."""
    for number, output in enumerate(outputs):
        if not output.open:
            continue
        excess = torch.where(output.doubt, output.difference / output.allowed.clamp_min(_LEAST), -1)
        flat = int(excess.reshape(-1).argmax())
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), excess.shape))
        got, expected = float(output.got[index]), float(output.expected[index])
        return Wrong(number, index, got, expected, float(output.allowed[index]))
    return None


# ---- elements --------------------------------------------------------------------------------


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How far apart elements are, in float64: infinite if one is NaN or infinite and the other
    isn't the same, at least 1 for different integers."""
    if a.is_complex():
        return distance(torch.view_as_real(a), torch.view_as_real(b)).amax(-1)
    same = (a == b) | (a.isnan() & b.isnan())
    far = (a.double() - b.double()).abs().nan_to_num(torch.inf, torch.inf)
    if not a.is_floating_point():
        far = far.clamp_min(1.0)
    return torch.where(same, 0.0, far)


def same_types(got: Results, expected: Results, where: str) -> None:
    """Check that the results have the same number of tensors, shapes and dtypes.

    Raises:
        EquivalenceError: they differ.
    """

    types = [[f"{r.dtype} {tuple(r.shape)}" for r in results] for results in (got, expected)]
    for number, (mine, theirs) in enumerate(zip_longest(*types, fillvalue="nothing")):
        if mine != theirs:
            raise EquivalenceError(
                "the optimized program's result has another type",
                where=f"output {number} on {where}",
                got=mine,
                expected=theirs,
                hint="this is a fault in eqsynth: please report it",
            )


def largest_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference divided by the largest value, among finite elements: a figure for
    reports."""
    got, expected = got.detach(), expected.detach()
    known = _finite(expected) & _finite(got)
    if not bool(known.any()):
        return 0.0
    scale = float(_size(expected)[known].max())
    error = float(distance(got, expected)[known].max())
    return error / scale if scale else error


def _size(x: torch.Tensor) -> torch.Tensor:
    """Absolute values in float64; 0 for NaN and infinities."""
    return x.double().abs().nan_to_num(0.0, 0.0, 0.0)


def _row(x: torch.Tensor) -> torch.Tensor:
    """The largest element of each row (the last axis), for each element."""
    if not x.ndim or not x.numel():
        return x
    return x.amax(-1, keepdim=True).expand_as(x)


def _any(x: torch.Tensor) -> torch.Tensor:
    """For each row (the last axis), whether any of its elements is true."""
    return x.any(-1) if x.ndim else x


def _finite(x: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(x)


def _eps(x: torch.Tensor) -> float:
    """The relative size of a rounding in the tensor's dtype; 0 for integers and bools."""
    return torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0
