"""A graphical model and a mixture of product distributions, blended into one distribution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mechanisms.families.product_mixture import PairMixtureModel, ProductMixtureModel
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput
from pgmkit.inference.query_answers import QueryAnswers
from pgmkit.model import GraphicalModel
from pgmkit.queries import FactoredQuery
from pgmkit.records.dataset import Dataset
from pgmkit.records.sampling import check_draw
from pgmkit.runtime.arguments import Rng, generator
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.atomic_write import bytes_of
from pgmkit.runtime.typed import typed_class
from pgmkit.runtime.untrusted import (
    LARGEST,
    FilePath,
    HeldFile,
    read_container,
    refusing,
    write_container,
)


@typed_class
class BlendedModel(QueryAnswers):
    """A graphical model and a mixture of product distributions, each with its share of the records:
    all counts are the sums of theirs, and so is `total`.

    Raises InvalidInput if their domains differ.

    >>> from pgmkit.domain import Domain
    >>> domain = Domain({"a": 2})
    >>> model = BlendedModel(
    ...     GraphicalModel(domain, (), total=60.0), ProductMixtureModel(domain, [[1, 0]], 40.0))
    >>> model.marginal(("a",))
    array([70., 30.])
    """

    format = "pgmkit blend"

    def __init__(self, graph: GraphicalModel, mixture: ProductMixtureModel) -> None:
        if graph.domain != mixture.domain:
            raise InvalidInput(
                "a graphical model and a mixture can be blended only over the same domain; got "
                f"{graph.domain} and {mixture.domain}"
            )
        self.domain, self.total = graph.domain, graph.total + mixture.total
        self.graph, self.mixture = graph, mixture

    def given(
        self, evidence: Mapping[str, int | Sequence[int]]
    ) -> BlendedModel | GraphicalModel | ProductMixtureModel:
        """Return the exact model of the records in which each attribute has the given code, or one
        of the given codes: the blend of both models of such records, or one of them if the other
        has none.

        Raises InvalidInput for unknown attributes or codes, and if neither has such records.

        >>> from pgmkit.domain import Domain
        >>> domain = Domain({"a": 2, "b": 2})
        >>> mixture = ProductMixtureModel(domain, [[0.5, 0.5, 0.1, 0.9]], 40.0)
        >>> model = BlendedModel(GraphicalModel(domain, (), total=60.0), mixture)
        >>> model.given({"a": 0}).marginal(("b",))
        array([17., 33.])
        """
        try:
            graph = self.graph.given(evidence)
        except InvalidInput:
            return self.mixture.given(evidence)
        try:
            return BlendedModel(graph, self.mixture.given(evidence))
        except InvalidInput:
            return graph

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the marginal over `attrs` in counts, axes in their order."""
        checked = self.domain.clique(attrs)
        return self.graph.marginal(checked) + self.mixture.marginal(checked)

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, Array]:
        """Return marginals in counts, by clique."""
        checked = [self.domain.clique(clique) for clique in cliques]
        found = self.mixture.marginals(checked)
        for clique, table in self.graph.each_marginal(checked):
            found[clique] += table
        return found

    def _answered(self, query: FactoredQuery) -> Array:
        return self.graph.answer(query) + self.mixture.answer(query)

    def sample(self, n: int, *, rng: Rng = None) -> Dataset:
        """Draw `n` records: each model gives its share of them, rounded up or down at random, and
        their order is shuffled.

        `rng`: a seed, a numpy Generator, or None for a fresh one. Raises InvalidInput unless n is a
        whole number, 1 or more, and ModelTooLarge for more records than there is memory for.
        """
        return self._drawn(n, self.mixture, rng)

    def first_records(self, n: int, *, rng: Rng = None) -> Dataset:
        """Return `n` records like `sample`, but those of the mixture from rows nearer to
        independence (`PairMixtureModel.flattened`), if it was fitted to pairs alone. Exchanges of
        their codes then bring their pairs near those of the model (`mechanisms.release.record`).
        """
        rows = self.mixture
        near = rows.flattened() if isinstance(rows, PairMixtureModel) else rows
        return self._drawn(n, near, rng)

    def _drawn(self, n: int, mixture: ProductMixtureModel, rng: Rng) -> Dataset:
        check_draw(n, self.domain)
        random = generator(rng)
        first = int(n * (self.graph.total / self.total) + random.random())
        draws = ((self.graph.sample, first), (mixture.sample, n - first))
        parts = [draw(count, rng=random).columns for draw, count in draws if count]
        order = random.permutation(n)
        columns = {name: np.concatenate([p[name] for p in parts])[order] for name in self.domain}
        return Dataset(self.domain, columns)

    def save(self, path: FilePath) -> None:
        """Write the model to one file, completely or not at all; `load` reads it."""
        parts: dict[str, GraphicalModel | ProductMixtureModel] = {
            "graph": self.graph,
            "mixture": self.mixture,
        }
        held = {
            name: np.frombuffer(bytes_of(part.save, path), dtype=np.uint8)
            for name, part in parts.items()
        }
        header = {"pairs": isinstance(self.mixture, PairMixtureModel)}
        write_container(path, self.format, header, held)

    @classmethod
    def load(cls, path: FilePath, *, max_bytes: int = LARGEST) -> BlendedModel:
        """Read a model that `save` wrote. Raises InvalidInput for any other file, and for one that
        would expand to more than `max_bytes`.
        """
        with refusing(path, f"a {cls.format} file"):
            header, arrays = read_container(path, cls.format, max_bytes)
            graph, mixture = (
                HeldFile(name, arrays[name].tobytes()) for name in ("graph", "mixture")
            )
            family = PairMixtureModel if header["pairs"] else ProductMixtureModel
            return cls(
                GraphicalModel.load(graph, max_bytes=max_bytes),
                family.load(mixture, max_bytes=max_bytes),
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: total {self.total:g}, {self.graph}, {self.mixture}>"


def blended(graph: GraphicalModel, mixture: ProductMixtureModel, share: float) -> BlendedModel:
    """Return the blend in which the graph has this share, above 0 and at most 1, of the mixture's
    total. The mixture keeps half a record at least, or half of a total below 1.
    """
    share = min(share, 1 - 0.5 / max(1.0, mixture.total))
    rest = type(mixture)(mixture.domain, mixture.rows, (1 - share) * mixture.total, mixture.shares)
    return BlendedModel(replace(graph, total=share * mixture.total, measurements=()), rest)
