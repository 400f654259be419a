"""Write pictures to docs/img from real runs on built-in data: `python docs/make_pictures.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from mechanisms import TableRelease, synthesize
from mechanisms.datasets.census import people, schema
from mechanisms.release.report import html
from pgmkit.runtime.html import bars

IMAGES = Path(__file__).with_name("img")


def drawing(figure: str) -> str:
    """The SVG inside a figure, on white: pages may be dark."""
    start = figure.index("<svg")
    end = figure.index(">", start) + 1
    ground = "<rect width='100%' height='100%' fill='white'/>"
    return figure[start:end] + ground + figure[end : figure.index("</svg>")] + "</svg>\n"


def chart(release: TableRelease, column: str) -> str:
    """A column's counts with 95% intervals."""
    labels = release.schema.columns[column].labels
    interval = release.bars(seed=0).marginal((column,))
    return drawing(bars(column, labels, interval.estimate, (interval.low, interval.high)))


def main() -> None:
    """Write every picture; the data are made up, the noise is that of the day."""
    release = synthesize(people(5000), schema(), epsilon=1.0, delta=1e-7, mechanism="aim")
    IMAGES.mkdir(exist_ok=True)
    drawn = {
        "marginal.svg": chart(release, "education"),
        "report.html": html(release),
    }
    for name, text in drawn.items():
        (IMAGES / name).write_text(text, encoding="utf-8")
    for path in sorted(IMAGES.iterdir()):
        sys.stdout.write(f"{path.name}: {path.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
