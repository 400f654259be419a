"""The synthetic records of a model in parts, each of which any process can make separately."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pgmkit import Dataset, Schema
from pgmkit.records.sampling_parts import PartedSample, part_rng
from pgmkit.tables.records import arrow_table


@dataclass(frozen=True)
class _Separate:
    """Parts that the model draws independently of each other: `n` records in all, `rows` in each
    part but the last, which may have fewer. `seed`: that of all parts.
    """

    model: Any
    n: int
    rows: int
    seed: tuple[int, ...]

    @property
    def count(self) -> int:
        return max(1, -(-self.n // self.rows))

    def parts(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        for number in range(start, stop):
            rows = min(self.n, (number + 1) * self.rows) - number * self.rows
            yield dict(self.model.sample(rows, rng=part_rng(self.seed, number)).columns)


@dataclass(frozen=True)
class RecordParts:
    """Records in parts, as codes and as tables of values; the object can be pickled.

    The parts of a graphical model's records are together one rounded draw (`PartedSample`); other
    models draw the parts independently.
    """

    drawn: PartedSample | _Separate
    schema: Schema

    @property
    def count(self) -> int:
        """The number of parts."""
        return self.drawn.count

    def codes(self) -> Iterator[Dataset]:
        """Yield every part's records as codes."""
        for columns in self.drawn.parts(0, self.count):
            yield Dataset(self.schema.domain, columns)

    def tables(self, start: int, stop: int) -> Iterator[Any]:
        """Yield the records of parts `start` to `stop` - 1 as pyarrow tables of values."""
        for number, columns in enumerate(self.drawn.parts(start, stop), start):
            data = Dataset(self.schema.domain, columns)
            # The part's codes are drawn from the stream (seed, number). With the further key 0 the
            # values within their bins are drawn from another stream.
            yield arrow_table(data, self.schema, part_rng(self.drawn.seed, number, 0))


def record_parts(
    model: Any, schema: Schema, n: int, rows: int, rng: np.random.Generator
) -> RecordParts:
    """Return `n` records of a model, to be drawn in parts of `rows` records each; the last part may
    have fewer. Nothing is drawn here but the seed, from `rng`.
    """
    # A method is looked for, and not the class GraphicalModel, so that the workers that make
    # records need load neither the class nor torch.
    if hasattr(model, "sample_in_parts"):
        return RecordParts(model.sample_in_parts(n, rows, rng=rng), schema)
    seed = tuple(int(word) for word in rng.integers(0, 1 << 32, 4))
    return RecordParts(_Separate(model, n, rows, seed), schema)
