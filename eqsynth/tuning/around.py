"""The space around a point: how much slower its neighbours are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eqsynth.tuning.space import Made, Refused, Space


def around(
    space: Space[Made], best: Made, times: Mapping[Made, float | None]
) -> dict[str, dict[Any, float | None]]:
    """For each parameter the values next to the best point's, and times the best's that they take;
    infinite where it fails, None where it wasn't measured. What is refused, or means the same as
    the best, is left out.

    Args:
        best: what was measured, and works.
        times: seconds of what was measured; None of what failed.
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
