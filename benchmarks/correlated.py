"""Time to a certified optimum on 10 x 10 grids of four values, by how correlated neighbours are.

Every attribute repeats one of its upper and left neighbours in the given share of 50,000 records;
all 180 pairs of neighbours are measured with noise of standard deviation 50.

Prints a table. Takes 0.1 CPU minutes.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.common import command_line, table
from pgmkit import Domain, Measurement, estimate

SIDE, VALUES, RECORDS, SIGMA = 10, 4, 50_000, 50.0
SHARES = (0.0, 0.3, 0.6, 0.8, 0.9)
HEADER = ("copied", "seconds", "loss", "gap", "noise units", "certified", "passes after the start")


def draw(share: float, rng: np.random.Generator) -> list[Measurement]:
    """The noisy tables of all pairs of neighbours."""
    records = rng.integers(0, VALUES, (SIDE, SIDE, RECORDS))
    for i in range(SIDE):
        for j in range(SIDE):
            near = [records[a, b] for a, b in ((i - 1, j), (i, j - 1)) if a >= 0 and b >= 0]
            if near:
                copied = np.choose(rng.integers(0, len(near), RECORDS), near)
                records[i, j] = np.where(rng.random(RECORDS) < share, copied, records[i, j])
    measured = []
    for i in range(SIDE):
        for j in range(SIDE):
            for a, b in ((i + 1, j), (i, j + 1)):
                if a < SIDE and b < SIDE:
                    cells = VALUES * records[i, j] + records[a, b]
                    counts = np.bincount(cells, minlength=VALUES**2)
                    values = counts + rng.normal(0, SIGMA, VALUES**2)
                    measured.append(Measurement((f"x{i}{j}", f"x{a}{b}"), values, SIGMA))
    return measured


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    domain = Domain({f"x{i}{j}": VALUES for i in range(SIDE) for j in range(SIDE)})
    rows = []
    for share in arguments.shares:
        measured = draw(share, np.random.default_rng(arguments.seed))
        begun = time.perf_counter()
        model = estimate(domain, measured, total=RECORDS)
        seconds, units = time.perf_counter() - begun, model.gap / model.unit
        certified = "yes" if model.certified else "no"
        rows.append([share, seconds, model.loss, model.gap, units, certified, model.iterations])
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
