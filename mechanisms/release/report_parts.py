"""Tables and charts of the report: HTML and SVG, no scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pgmkit.model import GraphicalModel

__all__ = ["bar_chart", "graph", "table"]

_MOST_BARS = 24


def graph(model: GraphicalModel) -> Iterator[str]:
    """The model's columns on a circle, joined where they are in one clique."""
    names = model.domain.attributes
    edges = {pair for clique in model.cliques for pair in combinations(sorted(clique), 2)}
    # Room for a line of text between neighbours on the circle.
    radius = max(150.0, 14 * len(names) / (2 * math.pi))
    margin = 8.0 * min(24, max(map(len, names))) + 20
    size = 2 * (radius + margin)
    angles = {name: 2 * math.pi * i / len(names) - math.pi / 2 for i, name in enumerate(names)}
    at = {
        name: (size / 2 + radius * math.cos(turn), size / 2 + radius * math.sin(turn))
        for name, turn in angles.items()
    }
    parts = [
        f"<line class='edge' x1='{at[a][0]:.1f}' y1='{at[a][1]:.1f}' x2='{at[b][0]:.1f}' "
        f"y2='{at[b][1]:.1f}'/>"
        for a, b in sorted(edges)
    ]
    for name, (x, y) in at.items():
        left = math.cos(angles[name]) < -1e-9
        degrees = math.degrees(angles[name]) + (180 if left else 0)
        shown = name if len(name) <= 24 else name[:23] + "…"
        parts.append(f"<circle class='node' cx='{x:.1f}' cy='{y:.1f}' r='5'/>")
        parts.append(
            f"<text transform='translate({x:.1f} {y:.1f}) rotate({degrees:.1f})' "
            f"x='{-10 if left else 10}' y='4' text-anchor='{'end' if left else 'start'}'>"
            f"<title>{escape(name)}</title>{escape(shown)}</text>"
        )
    yield "<h2>The model</h2>"
    yield (
        f"<p>{len(model.cliques)} cliques; columns are joined where the model holds them together. "
        "Others are independent given those between them.</p>"
    )
    yield (
        f"<svg width='{size:.0f}' viewBox='0 0 {size:.0f} {size:.0f}' role='img'>"
        f"{''.join(parts)}</svg>"
    )


def bar_chart(
    name: str,
    labels: Sequence[str],
    counts: np.ndarray[Any, Any],
    ends: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None,
) -> str:
    """A chart of horizontal bars; of many values the most frequent."""
    order = list(range(len(labels)))
    if len(order) > _MOST_BARS:
        order = sorted(np.argsort(-counts)[:_MOST_BARS].tolist())
    highest = max(1.0, *(float((counts if ends is None else ends[1])[i]) for i in order))
    scale, left, step = 190 / highest, 130, 17
    parts = []
    for line, i in enumerate(order):
        y = 4 + line * step
        label = labels[i] if len(labels[i]) <= 18 else labels[i][:17] + "…"
        parts.append(f"<text x='{left - 6}' y='{y + 10}' text-anchor='end'>{escape(label)}</text>")
        width = max(0.0, float(counts[i])) * scale
        parts.append(
            f"<rect class='bar' x='{left}' y='{y}' width='{width:.1f}' height='12'>"
            f"<title>{escape(labels[i])}: {counts[i]:,.0f}</title></rect>"
        )
        if ends is not None:
            low, high = (left + max(0.0, float(end[i])) * scale for end in ends)
            parts.append(
                f"<line class='whisker' x1='{low:.1f}' x2='{high:.1f}' y1='{y + 6}' y2='{y + 6}'/>"
            )
    more = len(labels) - len(order)
    caption = escape(name) + (f" ({more} rarer values not drawn)" if more else "")
    return (
        f"<figure><figcaption>{caption}</figcaption><svg width='340' "
        f"height='{10 + step * len(order)}' role='img' "
        f"viewBox='0 0 340 {10 + step * len(order)}'>{''.join(parts)}</svg></figure>"
    )


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: set[int] | None = None,
    caption: str = "",
) -> str:
    """A table of texts, which are escaped; the columns in `numbers` stand to the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in (numbers or set()) else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )

    top = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = f"<tr>{line(header, 'th')}</tr>" if any(header) else ""
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table>{top}{head}{body}</table>"
