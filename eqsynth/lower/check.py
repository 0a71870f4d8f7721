"""Comparing a program with its original on several kinds of inputs.

``check_equivalence(program, module, args)`` runs both on the given inputs, on random ones, on large
ones and so on, and raises ``Mismatch`` where they differ by more than rounding explains.

Not here: the kinds of inputs (``kinds.py``), which differences rounding explains (``rounding.py``),
running the original in float64 or with moved inputs (``reruns.py``), which rule or kernel is to
blame for a difference (``eqsynth/checking.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from eqsynth.errors import EquivalenceError
from eqsynth.extract.losing import NOTHING, Without
from eqsynth.lower.functional import specs_copied
from eqsynth.lower.kinds import KINDS, LARGE, Ranges, inputs_of, is_integer, ranges
from eqsynth.lower.reruns import Reference, Values, results
from eqsynth.lower.rounding import SUMS, Evidence, Wrong, judge, largest_error, same_types

Noisy = Callable[[Values, int], list[torch.Tensor] | None]
"""The program with noise on its intermediate values: its results for inputs and a seed, or None."""


@dataclass(frozen=True)
class Check:
    """The outcome of a comparison in which no fault was found.

    Attributes:
        error_rel: the largest difference divided by the largest value, on the given and random
            inputs.
        tried: the number of kinds of inputs that the original runs on.
        lost: kind of inputs -> the largest difference, relative to its row, that was accepted
            because the program's own rounding explains it.
        runs: how often the original ran, moved and in float64 included.
    """

    error_rel: float
    tried: int
    lost: Mapping[str, float] = field(default_factory=dict)
    runs: int = 0


class Mismatch(EquivalenceError):
    """The program differs from the original, or fails where the original doesn't.

    Attributes:
        inputs: the inputs on which the two differ.
        wrong: the worst element that differs; None if the results can't be compared.
        losing: the members of e-classes by whose rounding that element differs; none if rounding
            isn't the cause, or if they are the original's own.
    """

    inputs: Values = ((), {})
    wrong: Wrong | None = None
    losing: Without = NOTHING


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
    """Compare the two on every kind of inputs (``kinds.KINDS``) that the reference takes.

    Args:
        args, kwargs: the given inputs; the other kinds are drawn with the same types.
        state: buffers that both change. Their values after a run are compared, and then put back.
        guesses: see ``kinds.ranges``.
        noisy: the program with each of its intermediate values off by some roundings. It is given
            only where digits may be lost; a difference that it explains is reported in ``lost``.
        summed: see ``Evidence``.

    Raises:
        Mismatch: the two differ by more than rounding explains.
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
    """Whether the original runs on these inputs."""
    try:
        original(values)
    except Exception:  # whatever a user's module raises
        return False
    return True


def _drawn(
    original: Reference, given: Values, kind: str, integers: Ranges
) -> tuple[Values, list[torch.Tensor]] | None:
    """Inputs of a kind, and the original's results on them; None if the original refuses them.

    If the original refuses the drawn inputs, they are tried with the given integers and bools in
    place of drawn ones.
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
    """Compare on one kind of inputs; return the largest relative error, and the part that was lost
    (see ``Check``)."""
    where = f"{kind} inputs"
    try:
        got = results(program, values, original.state)
        same_types(got, expected, where)
        found = judge(
            got,
            expected,
            Evidence(
                # Both copy the original.
                moved=specs_copied()(lambda seed: original.moved(values, seed)),
                exact=specs_copied()(lambda: original.exact(values)),
                noisy=None if noisy is None else partial(noisy, values),
                overflows=kind in LARGE,
                summed=summed,
            ),
        )
    except EquivalenceError as error:
        raise _mismatch(values, error.what, error.where, error.got, error.expected) from error
    except Exception as error:  # the program fails, and the original didn't
        if kind != "given" and _fails_nearby(original, values):
            return 0.0, 0.0
        raised = f"{type(error).__name__}: {error}"[:500]
        what = "the optimized program fails where the original doesn't"
        raise _mismatch(values, what, where, raised, "a result") from error
    wrong = found.wrong
    if wrong is not None:
        what = "the optimized program differs from the original"
        wanted = f"{wrong.expected:.9g}, give or take {wrong.allowed:.2g}"
        mismatch = _mismatch(values, what, f"{wrong} on {where}", f"{wrong.got:.9g}", wanted)
        mismatch.wrong = wrong
        raise mismatch
    pairs = zip(got, expected, strict=True)
    return max((largest_error(y, z) for y, z in pairs), default=0.0), found.lost


def _fails_nearby(original: Reference, values: Values) -> bool:
    """Whether the original fails, too, if it rounds in another way: the inverse of a matrix that is
    singular up to rounding."""
    seeds = (*range(_NEARBY), *range(SUMS, SUMS + _NEARBY))
    return any(original.moved(values, seed) is None for seed in seeds)


_NEARBY: Final = 12
"""How often the original runs with inputs moved, and with all values moved, to see whether it
fails."""


def _mismatch(values: Values, what: str, where: str, got: str, expected: str) -> Mismatch:
    hint = "this is a fault in eqsynth: please report it; explain() shows the steps"
    error = Mismatch(what, where=where, got=got, expected=expected, hint=hint)
    error.inputs = values
    return error
