"""The neighbours of a point in a space, and how much slower they are. Reports show them, so that a
user sees whether a small change of the schedule matters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eqsynth.tuning.space import Made, Refused, Space


def around(
    space: Space[Made], best: Made, times: Mapping[Made, float | None]
) -> dict[str, dict[Any, float | None]]:
    """Return for each parameter the values next to the best point's value, and the time of each
    over the best time: ``{"rows": {4: 1.3, 16: None}}``. The ratio is infinite if the point fails,
    and None if it wasn't measured. Points that are refused, or that mean the same as the best, are
    left out.

    Args:
        best: a point's meaning that was measured and works.
        times: seconds of all that was measured; None for failures.
    """
    point, least = space.place(best), times[best]
    found: dict[str, dict[Any, float | None]] = {name: {} for name in space.parameters}
    if point is None or least is None:
        return found
    for k, (name, parameter) in enumerate(space.parameters.items()):
        for value in parameter.neighbours(point[k]):
            made = space.made((*point[:k], value, *point[k + 1 :]))
            if isinstance(made, Refused) or made == best:
                continue
            if made not in times:
                found[name][value] = None
                continue
            time_s = times[made]
            found[name][value] = float("inf") if time_s is None else time_s / least
    return found
