"""The result against the original, on several kinds of inputs.

Not here: the kinds (``kinds.py``), what rounding explains (``rounding.py``), what else the original
is asked (``reruns.py``), and whose fault a difference is (``eqsynth/checking.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from eqsynth.errors import EquivalenceError
from eqsynth.lower.kinds import KINDS, LARGE, Ranges, inputs_of, is_integer, ranges
from eqsynth.lower.reruns import Reference, Values, results
from eqsynth.lower.rounding import Evidence, judge, largest_error, on_the_way, same_types

Noisy = Callable[[Values, int], list[torch.Tensor] | None]


@dataclass(frozen=True)
class Check:
    """What was compared.

    Attributes:
        error_rel: the largest difference over the largest value, on the given and random inputs.
        tried: kinds of inputs that the original runs on.
        lost: kind of inputs -> the largest difference relative to its row that was let pass since
            the program's own rounding explains it.
        runs: how often the original ran, in whatever way.
    """

    error_rel: float
    tried: int
    lost: Mapping[str, float] = field(default_factory=dict)
    runs: int = 0


class Mismatch(EquivalenceError):
    """Attributes:
    inputs: on which the program differs from the original.
    """

    inputs: Values = ((), {})


def check_equivalence(
    program: Callable[..., Any],
    reference: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    state: Sequence[torch.Tensor] = (),
    guesses: Mapping[int, int] | None = None,
    noisy: Noisy | None = None,
    summed: Sequence[int] = (),
) -> Check:
    """Compares the two on every kind of inputs (``kinds.KINDS``) that the reference takes.

    Args:
        args, kwargs: as given; others are drawn of their types.
        state: buffers that both change: compared after a run, and as they were in the end.
        guesses: see ``kinds.ranges``.
        noisy: the program with each of its intermediate values off by some roundings, by inputs
            and a seed. Given where digits may be lost; what this explains is told in ``lost``.
        summed: see ``Evidence``.

    Raises:
        Mismatch: they differ by more than rounding explains.
    """
    given: Values = (tuple(args), dict(kwargs or {}))
    original = Reference(reference, state)
    expected = original(given)
    integers = ranges(given, partial(_runs, original), guesses)
    worst, tried, lost = 0.0, 0, dict[str, float]()
    for kind in KINDS:
        values = given
        if kind != "given":
            drawn = _drawn(original, given, kind, integers)
            if drawn is None:
                continue
            values, expected = drawn
        tried += 1
        error, part = _compare(program, original, values, expected, kind, noisy, summed)
        worst = max(worst, error if kind in ("given", "random") else 0.0)
        if part:
            lost[kind] = part
    return Check(worst, tried, lost, original.runs)


def _runs(original: Reference, values: Values) -> bool:
    try:
        original(values)
    except Exception:  # whatever a user's module raises
        return False
    return True


def _drawn(
    original: Reference, given: Values, kind: str, integers: Ranges
) -> tuple[Values, list[torch.Tensor]] | None:
    """Inputs of a kind, and the original's results on them.

    If it refuses them, integers and bools stay as given; if it refuses that, there are none.
    """
    values = inputs_of(given, kind, integers)
    leaves, tree = tree_flatten(given)
    mine = tree_flatten(values)[0]
    kept = [
        theirs if is_integer(theirs) or getattr(theirs, "dtype", None) == torch.bool else drawn
        for theirs, drawn in zip(leaves, mine, strict=True)
    ]
    for tried in (values, tree_unflatten(kept, tree)):
        try:
            return tried, original(tried)
        except Exception:
            continue
    return None


def _compare(
    program: Callable[..., Any],
    original: Reference,
    values: Values,
    expected: list[torch.Tensor],
    kind: str,
    noisy: Noisy | None,
    summed: Sequence[int],
) -> tuple[float, float]:
    """The largest relative error, and what was lost; see ``Check``."""
    where = f"{kind} inputs"
    try:
        got = results(program, values, original.state)
        same_types(got, expected, where)
        found = judge(
            got,
            expected,
            Evidence(
                moved=lambda seed: original.moved(values, seed, on_the_way(summed)),
                exact=lambda: original.exact(values),
                noisy=None if noisy is None else partial(noisy, values),
                overflows=kind in LARGE,
                roundings=on_the_way(summed),
                summed=summed,
            ),
        )
    except EquivalenceError as error:
        raise _mismatch(values, error.what, error.where, error.got, error.expected) from error
    except Exception as error:  # of the program, where the original has none
        raised = f"{type(error).__name__}: {error}"[:500]
        what = "the optimized program fails where the original doesn't"
        raise _mismatch(values, what, where, raised, "a result") from error
    wrong = found.wrong
    if wrong is not None:
        what = "the optimized program differs from the original"
        wanted = f"{wrong.expected:.9g}, give or take {wrong.allowed:.2g}"
        raise _mismatch(values, what, f"{wrong} on {where}", f"{wrong.got:.9g}", wanted)
    pairs = zip(got, expected, strict=True)
    return max((largest_error(y, z) for y, z in pairs), default=0.0), found.lost


def _mismatch(values: Values, what: str, where: str, got: str, expected: str) -> Mismatch:
    hint = "this is a fault in eqsynth: please report it; explain() shows the steps"
    error = Mismatch(what, where=where, got=got, expected=expected, hint=hint)
    error.inputs = values
    return error
