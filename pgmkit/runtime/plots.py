"""Charts by matplotlib (the extra `plot`): bars with whiskers, steps of a CDF, a model's graph.

`bars`, `steps` and `graph` draw into `axes`, or into a new figure if that is None, and return the
axes. They raise InvalidInput if matplotlib is not installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from pgmkit.errors import InvalidInput, installing
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.html import angles
from pgmkit.runtime.printed import on_one_line

Ends = tuple[Array, Array]
"""The lower and the upper ends of error bars, each with one number for each value."""


def bars(axes: Any, labels: Sequence[str], values: Array, ends: Ends | None) -> Any:
    """Draw a horizontal bar for each label, the first at the top, of the length of its value, with
    whiskers between ``ends`` unless that is None. Return the axes: the given ones or, for None,
    those of a new figure.
    """
    axes = _drawable(axes)
    reach = None if ends is None else np.maximum([values - ends[0], ends[1] - values], 0.0)
    axes.barh(range(len(labels)), values, xerr=reach, tick_label=list(map(plain, labels)))
    axes.invert_yaxis()
    return axes


def steps(
    axes: Any, groups: Sequence[str], labels: Sequence[str], values: Array, ends: Ends | None
) -> Any:
    """Draw a step function for each group, with a band between ``ends`` unless that is None. Point
    i has the value ``values[i]`` at ``labels[i]`` and belongs to ``groups[i]``; labels are placed
    along the axis in the order in which they first occur. Return the axes, as `bars` does.
    """
    axes = _drawable(axes)
    places = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    for group in dict.fromkeys(groups):
        own = [line for line, each in enumerate(groups) if each == group]
        x = [places[labels[line]] for line in own]
        axes.step(x, values[own], where="post", label=plain(group))
        if ends is not None:
            axes.fill_between(x, ends[0][own], ends[1][own], step="post", alpha=0.2)
    axes.set_xticks(range(len(places)), map(plain, places), rotation=90)
    if len(set(groups)) > 1:
        axes.legend()
    return axes


def graph(axes: Any, names: Sequence[str], cliques: Iterable[Sequence[str]]) -> Any:
    """Draw the attributes ``names`` on a circle, with a line between any two that share a
    clique. Return the axes, as `bars` does.
    """
    axes = _drawable(axes)
    at = {name: (math.cos(turn), -math.sin(turn)) for name, turn in angles(names).items()}
    for a, b in sorted({pair for clique in cliques for pair in combinations(sorted(clique), 2)}):
        axes.plot(*zip(at[a], at[b], strict=True), color="0.7", zorder=1)
    axes.scatter(*zip(*at.values(), strict=True), zorder=2)
    for name, (x, y) in at.items():
        side = "left" if x >= 0 else "right"
        axes.annotate(plain(name), (x, y), (1.08 * x, 1.08 * y), ha=side, va="center")
    axes.set_aspect("equal")
    axes.set_axis_off()
    return axes


def plain(text: str) -> str:
    """Return a text on one line, in the form that matplotlib shows as it is: with a backslash
    before each dollar sign, as two of them would enclose a formula.
    """
    return on_one_line(text).replace("$", r"\$")


def _drawable(axes: Any) -> Any:
    """Return the given axes, or those of a new figure if None is given. Raises InvalidInput if they
    are no axes of matplotlib, or if matplotlib is not installed.
    """
    if axes is not None:
        if not hasattr(axes, "barh"):
            raise InvalidInput(f"axes must be axes of matplotlib, got {type(axes).__name__}")
        return axes
    try:
        from matplotlib import pyplot
    except ImportError:
        raise InvalidInput(f"plot needs matplotlib: {installing('plot')}") from None
    return pyplot.figure(layout="constrained").subplots()
