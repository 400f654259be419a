"""HTML for notebooks and reports: tables, bar charts, heat maps and drawings of a model's graph.

All functions but `angles` return a text to be put into a page. Names and labels may come from
untrusted files, so all texts pass through `escape`. Drawings are SVG without style sheets, scripts
or links. A page can style their parts by these CSS classes: bar, whisker, axis, edge, node, heat,
joined.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape as escaped
from itertools import combinations
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pgmkit.runtime.printed import NAMED, on_one_line

_BLUE, _INK, _EDGE = "#4f81bd", "#1c2733", "#9fb3c8"
_FONT = "font-family='system-ui, sans-serif' font-size='12'"
_NUMBER = "text-align: right; font-variant-numeric: tabular-nums"
MOST_BARS = 2 * NAMED
"""The most values that a bar chart draws, rows that a table shows, and letters of a name."""
MOST_COLUMNS = 100
"""The most columns of a picture that can still be told apart on a screen."""


def escape(text: str) -> str:
    """Return a text for use in a page: on one line, without control characters, and with markup
    escaped.

    >>> escape("<b>\x1b[2J")
    '&lt;b&gt;'
    """
    return escaped(on_one_line(text))


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Collection[int] = (),
    caption: str = "",
    filled: Mapping[int, Sequence[float] | NDArray[np.float64]] = MappingProxyType({}),
) -> str:
    """Return a table of texts. The columns whose places are in `numbers` are aligned to the right.
    `filled` has, by the place of a column, one share from 0 to 1 for each row; a bar behind the
    column's cell in that row covers this share of the cell's width. A header of empty texts alone
    is left out.

    >>> table(["a", "b"], [["<x>", "1"]])
    '<table><tr><th>a</th><th>b</th></tr><tr><td>&lt;x&gt;</td><td>1</td></tr></table>'
    """

    def style(place: int, row: int | None) -> str:
        found = _NUMBER if place in numbers else ""
        found += "; white-space: nowrap" if found and row is not None else ""
        if row is not None and place in filled:
            end = f"{100 * min(1.0, max(0.0, filled[place][row])):.0f}%"
            found += f"; background: linear-gradient(90deg, {_BLUE}55 {end}, transparent {end})"
        return f" style='{found}'" if found else ""

    def line(cells: Sequence[str], tag: str, row: int | None = None) -> str:
        return "".join(
            f"<{tag}{style(i, row)}>{escape(cell)}</{tag}>" for i, cell in enumerate(cells)
        )

    top = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = f"<tr>{line(header, 'th')}</tr>" if any(header) else ""
    body = "".join(f"<tr>{line(row, 'td', i)}</tr>" for i, row in enumerate(rows))
    return f"<table>{top}{head}{body}</table>"


def _shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters: of a longer one the beginning and the end, since
    labels often differ in one of them only.

    >>> _shortened("under 18 years of age, employed", 18)
    'under 18… employed'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}"


def graph(names: Sequence[str], cliques: Iterable[Sequence[str]]) -> str:
    """Return a drawing of the attributes on a circle, with a line between any two that share a
    clique and each name written outside the circle.
    """
    edges = {pair for clique in cliques for pair in combinations(sorted(clique), 2)}
    # The radius leaves space for a line of text between neighbours on the circle.
    radius = max(150.0, 14 * len(names) / (2 * math.pi))
    size = round(2 * (radius + 8 * min(MOST_BARS, max(map(len, names))) + 20))
    turns = angles(names)
    at = {
        name: (size / 2 + radius * math.cos(turn), size / 2 + radius * math.sin(turn))
        for name, turn in turns.items()
    }
    parts = [
        f"<line class='edge' stroke='{_EDGE}' x1='{at[a][0]:.1f}' y1='{at[a][1]:.1f}' "
        f"x2='{at[b][0]:.1f}' y2='{at[b][1]:.1f}'/>"
        for a, b in sorted(edges)
    ]
    for name, (x, y) in at.items():
        left = math.cos(turns[name]) < -1e-9
        degrees = math.degrees(turns[name]) + (180 if left else 0)
        shown = _shortened(name, MOST_BARS)
        parts.append(f"<circle class='node' fill='{_BLUE}' cx='{x:.1f}' cy='{y:.1f}' r='5'/>")
        parts.append(
            f"<text transform='translate({x:.1f} {y:.1f}) rotate({degrees:.1f})' "
            f"x='{-10 if left else 10}' y='4' text-anchor='{'end' if left else 'start'}'>"
            f"<title>{escape(name)}</title>{escape(shown)}</text>"
        )
    return _svg(size, size, parts)


def angles(names: Sequence[str]) -> dict[str, float]:
    """Return the angle of each name on a circle, in radians, clockwise from the top in a drawing
    whose second axis points down.
    """
    return {n: 2 * math.pi * i / len(names) - math.pi / 2 for i, n in enumerate(names)}


def bars(
    name: str,
    labels: Sequence[str],
    counts: NDArray[np.float64],
    ends: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
    *,
    total: float | None = None,
) -> str:
    """Return a chart with the caption `name` and a horizontal bar for each label, over an axis of
    counts. `ends` are the lower and the upper ends of error bars, which are drawn as whiskers;
    `counts` and both arrays of ends have one number for each label.

    If there are more than `MOST_BARS` labels, those of the largest counts are drawn, in the given
    order. Each count is written beside its bar, with its share of `total` unless that is None or 0.
    """
    order = sorted(np.argsort(-counts)[:MOST_BARS].tolist())
    reached = [float((counts if ends is None else ends[1])[i]) for i in order]
    highest = max(1.0, *(each for each in reached if math.isfinite(each)), *counts[order])
    scale, left, step = 190 / highest, 150, 17
    bottom = 8 + len(order) * step
    parts = []
    for line, i in enumerate(order):
        y = 4 + line * step
        label = _shortened(labels[i], 18)
        parts.append(f"<text x='{left - 6}' y='{y + 10}' text-anchor='end'>{escape(label)}</text>")
        width = max(0.0, float(counts[i])) * scale
        parts.append(
            f"<rect class='bar' fill='{_BLUE}' x='{left}' y='{y}' width='{width:.1f}' height='12'>"
            f"<title>{escape(labels[i])}: {counts[i]:,.0f}</title></rect>"
        )
        if ends is not None:
            low, high = (left + min(max(0.0, float(end[i])), highest) * scale for end in ends)
            parts.append(
                f"<line class='whisker' stroke='{_INK}' stroke-width='2' x1='{low:.1f}' "
                f"x2='{high:.1f}' y1='{y + 6}' y2='{y + 6}'/>"
            )
        share = f" ({float(counts[i]) / total:.1%})" if total else ""
        parts.append(f"<text x='{left + 200}' y='{y + 10}'>{float(counts[i]):,.0f}{share}</text>")
    parts.append(_axis(left, bottom, highest, scale))
    more = len(labels) - len(order)
    caption = escape(name) + (f" ({more} rarer values not drawn)" if more else "")
    return f"<figure><figcaption>{caption}</figcaption>{_svg(460, bottom + 22, parts)}</figure>"


def _axis(left: float, bottom: float, highest: float, scale: float) -> str:
    """Return a horizontal axis that begins at `left` at the height `bottom`, with ticks at round
    numbers from 0 to `highest`; `scale` is the width of one count.
    """
    power = 10 ** math.floor(math.log10(highest))
    step = next(power * part for part in (0.25, 0.5, 1, 2.5) if highest / (power * part) < 4)
    parts = [
        f"<line class='axis' stroke='{_EDGE}' x1='{left}' x2='{left + highest * scale:.1f}' "
        f"y1='{bottom}' y2='{bottom}'/>"
    ]
    for place in range(int(highest / step) + 1):
        x = left + place * step * scale
        parts.append(
            f"<line class='axis' stroke='{_EDGE}' x1='{x:.1f}' x2='{x:.1f}' y1='{bottom}' "
            f"y2='{bottom + 4}'/><text x='{x:.1f}' y='{bottom + 16}' text-anchor='middle'>"
            f"{place * step:,.12g}</text>"
        )
    return "".join(parts)


def heat_map(
    names: Sequence[str],
    strengths: Mapping[tuple[str, str], float],
    framed: Collection[tuple[str, str]] = (),
) -> str:
    """Return a drawing of the lower triangle of a matrix: a square for each pair of attributes, the
    darker the stronger the pair's relation is (from 0 to 1).

    `strengths`: the strength of each pair, whose attributes are in the order of `names`. `framed`:
    the pairs whose squares get an outline.
    """
    side = max(13, min(28, 640 // len(names)))
    short = [_shortened(name, MOST_BARS) for name in names]
    left, marked = 8 * max(map(len, short)) + 10, {frozenset(pair) for pair in framed}
    size = side * len(names)
    parts = []
    for i, name in enumerate(names):
        parts.append(
            f"<text x='{left - 6}' y='{(i + 0.5) * side + 4:.1f}' text-anchor='end'>"
            f"<title>{escape(name)}</title>{escape(short[i])}</text>"
            f"<text transform='translate({left + (i + 0.5) * side + 4:.1f} {size + 6}) "
            f"rotate(-90)' text-anchor='end'><title>{escape(name)}</title>{escape(short[i])}</text>"
        )
        for j, other in enumerate(names[:i]):
            strength = strengths[other, name]
            frame = f" stroke='{_INK}'" if frozenset((name, other)) in marked else ""
            parts.append(
                f"<rect class='heat{' joined' if frame else ''}' fill='{_BLUE}'{frame} "
                f"fill-opacity='{strength:.2f}' x='{left + j * side + 1}' y='{i * side + 1}' "
                f"width='{side - 2}' height='{side - 2}'><title>{escape(name)} with "
                f"{escape(other)}: {strength:.2f}</title></rect>"
            )
    return _svg(left + size + 10, size + left, parts)


def more_rows(rows: int) -> str:
    """Return the end of a caption that says how many of the ``rows`` are not shown; it is empty if
    all are shown.
    """
    return f"; {rows - MOST_BARS:,} more rows not shown" if rows > MOST_BARS else ""


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"viewBox='0 0 {width} {height}' role='img' {_FONT}>{''.join(parts)}</svg>"
    )
