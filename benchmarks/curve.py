"""A plot of curves over a logarithmic axis, as an SVG file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 420, 60, 30, 150, 50
_COLORS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


def svg(title: str, x_name: str, y_name: str, curves: Mapping[str, Points]) -> str:
    """The curves as an SVG document; the second axis begins at 0, and 1 has a line of its own.

    Raises:
        ValueError: there are no points, or one with a first coordinate that isn't positive.
    """
    points = [point for curve in curves.values() for point in curve]
    if not points or min(x for x, _ in points) <= 0:
        raise ValueError("a logarithmic axis needs points with positive coordinates")
    low, high = (f(math.log10(x) for x, _ in points) for f in (min, max))
    most = 1.1 * max(1.0, *(y for _, y in points))

    def at(x: float, y: float) -> tuple[float, float]:
        share = (math.log10(x) - low) / (high - low) if high > low else 0.5
        across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return round(_LEFT + share * across, 1), round(_TOP + (1 - y / most) * down, 1)

    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
        f'<path d="M{_LEFT},{_TOP}V{bottom}H{right}" fill="none" stroke="black"/>',
        f'<path d="M{_LEFT},{at(10**low, 1.0)[1]}H{right}" stroke="gray" stroke-dasharray="4"/>',
        f'<text x="{(_LEFT + right) // 2}" y="{_HEIGHT - 12}">{escape(x_name)}</text>',
        f'<text x="14" y="{_TOP - 8}">{escape(y_name)}</text>',
    ]
    for x in sorted({x for x, _ in points})[:: max(1, len({x for x, _ in points}) // 8)]:
        parts.append(f'<text x="{at(x, 0)[0] - 8}" y="{bottom + 16}">{x:.3g}</text>')
    for n in range(5):
        y = most * n / 4
        parts.append(f'<text x="{_LEFT - 34}" y="{at(10**low, y)[1] + 4}">{y:.2f}</text>')
    for n, (name, curve) in enumerate(curves.items()):
        color, places = _COLORS[n % len(_COLORS)], [at(x, y) for x, y in sorted(curve)]
        line = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{color}"/>' for x, y in places]
        parts.append(
            f'<text x="{right + 10}" y="{_TOP + 16 * n + 10}" fill="{color}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
