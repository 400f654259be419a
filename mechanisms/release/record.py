"""What a mechanism hands out: a model, the noisy values behind it, and what they cost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mechanisms.privacy.budget import Ledger
    from pgmkit.dataset import Dataset
    from pgmkit.domain import Clique, Domain
    from pgmkit.measurement import Measurement
    from pgmkit.queries import FactoredQuery

__all__ = ["Model", "Release"]


class Model(Protocol):
    """What a release answers from; counts that sum to `total`."""

    @property
    def domain(self) -> Domain: ...
    @property
    def total(self) -> float: ...
    def marginal(self, attrs: Iterable[str]) -> NDArray[np.float64]: ...
    def marginals(
        self, cliques: Iterable[Iterable[str]]
    ) -> Mapping[Clique, NDArray[np.float64]]: ...
    def answer(self, query: FactoredQuery) -> NDArray[np.float64]: ...
    def sample(self, n: int, rng: np.random.Generator) -> Dataset: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...


@dataclass(frozen=True, repr=False)
class Release:
    """The result of a mechanism; everything in it is safe to publish when `secure` is True.

    `ledger` is the Curator's own: it also shows what is charged to the same data later; None for
    a model of noisy tables from elsewhere, whose price is not known here. `schema`: what the codes
    mean, as `pgmkit.Schema.to_dict` gives it, where somebody said.
    """

    mechanism: str
    model: Model
    measurements: tuple[Measurement, ...]
    ledger: Ledger | None
    settings: object
    schema: Mapping[str, Any] | None = None

    @property
    def secure(self) -> bool:
        """False when a seed made the noise reproducible: such a release protects nobody."""
        return self.ledger is None or self.ledger.secure

    @property
    def fit(self) -> str:
        """How close a graphical model came to the best fit of the noisy tables; else empty."""
        return str(getattr(self.model, "fit", ""))

    @property
    def certified(self) -> bool:
        """False when the search for the model ended short of its tolerance; `fit` says how far."""
        return bool(getattr(self.model, "certified", True)) or not self.fit

    def answer(self, query: FactoredQuery) -> NDArray[np.float64]:
        """The model's answers to a factored query, in counts, of the query's shape."""
        return self.model.answer(query)

    def sample(
        self, n: int | None = None, *, seed: int | np.random.Generator | None = None
    ) -> Dataset:
        """`n` synthetic records; by default as many as the model's total, rounded."""
        rows = max(1, round(self.model.total)) if n is None else n
        return self.model.sample(rows, np.random.default_rng(seed))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file (JSON and arrays, no pickle), whole or not at all."""
        from mechanisms.release import file

        file.save({field.name: getattr(self, field.name) for field in fields(self)}, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Release:
        """Read a file that `save` wrote; InvalidInput for anything else."""
        from mechanisms.release import file

        return cls(**file.load(path))

    def __repr__(self) -> str:
        return (
            f"<Release of {self.mechanism}: {len(self.measurements)} measurements, {self.ledger!r}"
            f"{'' if self.secure else ', INSECURE'}{'' if self.certified else f', {self.fit}'}>"
        )
