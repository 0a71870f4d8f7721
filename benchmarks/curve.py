"""Plots as SVG text, without a library: curves over a logarithmic axis, and groups of bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 420, 60, 30, 150, 50
_COLORS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf",
                  "#7f7f7f", "#bcbd22", "#e377c2")  # fmt: skip


def svg(
    title: str, x_name: str, y_name: str, curves: Mapping[str, Points], joined: bool = True
) -> str:
    """The curves as an SVG document. The vertical axis begins at 0, and there is a line at 1.

    Args:
        joined: whether the points of a curve are joined by a line.

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
        if joined:
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{color}"/>' for x, y in places]
        parts.append(
            f'<text x="{right + 10}" y="{_TOP + 16 * n + 10}" fill="{color}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def below_each_other(plots: Sequence[str]) -> str:
    """Several plots of :func:`svg` as one document, one below the other."""
    height = _HEIGHT * len(plots)
    placed = [plot.replace("<svg ", f'<svg y="{_HEIGHT * n}" ', 1) for n, plot in enumerate(plots)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}">'
    return "".join([head, "\n", *placed, "</svg>\n"])


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Groups of horizontal bars as an SVG document, with a line at 1. A group has a bar for each
    series, and a series has the same colour in all groups.

    Raises:
        ValueError: there are no bars, or one is negative.
    """
    values = [value for group in groups.values() for value in group.values()]
    if not values or min(values) < 0:
        raise ValueError("bars need values, none of them negative")
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    most, bar, left = max(1.0, *values), 11, 150
    across = _WIDTH - left - _RIGHT
    parts, y = [f'<text x="{left}" y="18" font-size="14">{escape(title)}</text>'], float(_TOP)
    for group, members in groups.items():
        middle = y + bar * len(members) / 2 + 4
        parts.append(f'<text x="{left - 6}" y="{middle}" text-anchor="end">{escape(group)}</text>')
        for name, value in members.items():
            color, long = _COLORS[series.index(name) % len(_COLORS)], across * value / most
            parts.append(f'<rect x="{left}" y="{y}" width="{long:.1f}" height="{bar - 2}" '
                         f'fill="{color}"/>')  # fmt: skip
            parts.append(f'<text x="{left + long + 4:.1f}" y="{y + 9}" font-size="9">'
                         f"{value:.2f}</text>")  # fmt: skip
            y += bar
        y += bar
    one = left + across / most
    parts.append(f'<path d="M{one:.1f},{_TOP}V{y}" stroke="gray" stroke-dasharray="4"/>')
    for n, name in enumerate(series):
        color = _COLORS[n % len(_COLORS)]
        place = f'x="{_WIDTH - _RIGHT + 40}" y="{_TOP + 16 * n + 10}"'
        parts.append(f'<text {place} fill="{color}">{escape(name)}</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 10}" '
        'font-family="sans-serif" font-size="12">'
    )
    ground = f'<rect width="{_WIDTH}" height="{y + 10}" fill="white"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])
