"""Mixtures of product distributions: K rows, each with its own distribution of every attribute.

This is the family of GEM, RAPsoftmax and RAP. With p_k[a, v] the probability of code v of attribute
a in row k, the cell (v_1, ..., v_j) of the marginal over (a_1, ..., a_j) is the product query

    (1/K) sum_k p_k[a_1, v_1] ... p_k[a_j, v_j]                (Liu, Vietri, Wu 2021, equation (5)).

Rows may also have unequal shares, which sum to 1 and then take the place of 1/K.

All cells of all marginals that share all but their last attribute are one matrix product, so the
334,128 three-way cells of ADULT take 78 products and no gather.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.inference.potentials import checked_total
from pgmkit.inference.query_answers import QueryAnswers
from pgmkit.queries import FactoredQuery
from pgmkit.records.dataset import Dataset
from pgmkit.records.sampling import check_draw, draw_independent
from pgmkit.runtime.arguments import Rng, generator
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import TINY
from pgmkit.runtime.typed import typed_class
from pgmkit.runtime.untrusted import LARGEST, FilePath, read_container, refusing, write_container


class Columns:
    """The one-hot layout: the place of each attribute's codes among the columns of a row.

    >>> columns = Columns(Domain({"a": 2, "b": 3}))
    >>> columns.width, columns.of("b")
    (5, slice(2, 5, None))
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.sizes = list(domain.shape())
        ends = list(accumulate(self.sizes))
        self._slices = {
            name: slice(end - size, end)
            for name, size, end in zip(domain.attributes, self.sizes, ends, strict=True)
        }
        self.width = ends[-1]

    def of(self, attribute: str) -> slice:
        """Return the columns of an attribute, one for each code."""
        return self._slices[attribute]

    def softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Return rows of probabilities from rows of logits (K x width): a softmax within each
        attribute.

        >>> rows = Columns(Domain({"a": 2, "b": 3})).softmax(torch.zeros(1, 5))
        >>> rows[0, 0].item()
        0.5
        """
        parts = torch.split(logits, self.sizes, dim=1)
        return torch.cat([part.softmax(1) for part in parts], dim=1)

    def of_cells(self, cells: Iterable[tuple[Clique, int]]) -> torch.Tensor:
        """Return the numbers of the columns whose product answers each cell, an int64 tensor of
        shape (number of cells, length of the longest clique, at least 1).

        `cells` are pairs of a clique and a flat index in C order. Lines of shorter cliques are
        filled with the number `width`, for a column of ones that the caller adds after the others.

        >>> Columns(Domain({"a": 2, "b": 3})).of_cells([(("b", "a"), 5), (("a",), 0)]).tolist()
        [[4, 1], [0, 5]]
        """
        lines = []
        for clique, index in cells:
            codes = zip(clique, np.unravel_index(index, self.domain.shape(clique)), strict=True)
            lines.append([self._slices[name].start + int(code) for name, code in codes])
        longest = max([1, *map(len, lines)])
        padded = [line + [self.width] * (longest - len(line)) for line in lines]
        return torch.tensor(padded, dtype=torch.long).reshape(len(lines), longest)


class ProductAnswers:
    """Answers of whole marginals by matrix products, grouped once for a list of cliques.

    >>> answers = ProductAnswers(Columns(Domain({"a": 2, "b": 2})), [("b", "a")])
    >>> rows = torch.tensor([[1.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.0, 1.0]])
    >>> answers(rows)[("b", "a")].tolist()
    [[0.25, 0.0], [0.5, 0.25]]
    """

    def __init__(self, columns: Columns, cliques: Iterable[Clique]) -> None:
        self._columns = columns
        # The largest attribute comes last, so that only the others' product is formed row by row.
        ranked = sorted(columns.domain, key=columns.domain.sizes.__getitem__)
        rank = {name: place for place, name in enumerate(ranked)}
        # A key is a clique's attributes by ascending size, without the last and largest one. Its
        # values are pairs: the clique as given, and the clique by ascending size.
        self.groups: dict[Clique, list[tuple[Clique, Clique]]] = {}
        self._total = False
        for clique in cliques:
            if not clique:
                self._total = True
                continue
            ordered = tuple(sorted(clique, key=rank.__getitem__))
            self.groups.setdefault(ordered[:-1], []).append((clique, ordered))

    def __call__(
        self, rows: torch.Tensor, shares: torch.Tensor | None = None
    ) -> dict[Clique, torch.Tensor]:
        """Return the marginal (fractions) of each clique, axes in its order. `rows`: K x
        columns.width. `shares`: the K shares of the rows, by default equal ones.
        """
        if shares is None:
            shares = rows.new_full((len(rows),), 1 / len(rows))
        # The rows are split by one operation. Separate slices would each allocate a gradient of the
        # size of all rows in the backward pass.
        split = torch.split(rows, self._columns.sizes, dim=1)
        parts = dict(zip(self._columns.domain, split, strict=True))
        tables: dict[Clique, torch.Tensor] = {(): shares.sum()} if self._total else {}
        for prefix, group in self.groups.items():
            lasts = [ordered[-1] for _, ordered in group]
            right = torch.cat([parts[name] for name in lasts], dim=1)
            left = shares.unsqueeze(1)  # the row-wise Kronecker products over the prefix: K x cells
            for name in prefix:
                left = (left.unsqueeze(2) * parts[name].unsqueeze(1)).flatten(1)
            product = left.t() @ right
            sizes = [self._columns.domain.sizes[name] for name in lasts]
            flats = torch.split(product, sizes, dim=1)
            for (clique, ordered), flat in zip(group, flats, strict=True):
                table = flat.reshape(self._columns.domain.shape(ordered))
                tables[clique] = table.permute([ordered.index(name) for name in clique])
        return tables


@typed_class
class ProductMixtureModel(QueryAnswers):
    """A released mixture: K product distributions, scaled to `total` counts.

    `rows` is K x (sum of the attributes' sizes), attributes in the domain's order; within each
    attribute a row is at least 0 and sums to 1 within 1e-4, and is scaled here to sum to exactly 1.
    `shares`: the shares of the rows, equal ones by default; they are scaled to sum to 1.

    Raises InvalidInput for rows of another shape or off the simplex, shares that are not K numbers
    of at least 0, or a total not above 0.

    >>> model = ProductMixtureModel(Domain({"a": 2, "b": 2}), [[1, 0, 0.5, 0.5]], total=10)
    >>> model.marginal(("b", "a"))
    array([[5., 0.],
           [5., 0.]])
    """

    format = "pgmkit product mixture"

    def __init__(
        self, domain: Domain, rows: ArrayLike, total: float, shares: ArrayLike | None = None
    ) -> None:
        self.domain = domain
        self._columns = Columns(domain)
        self.rows = np.array(rows, dtype=np.float64)
        width = self._columns.width
        if self.rows.ndim != 2 or self.rows.shape[0] == 0 or self.rows.shape[1] != width:
            raise InvalidInput(
                f"rows have the shape {self.rows.shape}, but must be K x {width}, one column for "
                "each code of each attribute, K at least 1"
            )
        self._check_rows()
        self.rows.flags.writeable = False
        self.total = checked_total(total)
        weights = np.ones(len(self.rows)) if shares is None else np.array(shares, dtype=np.float64)
        proper = (weights >= 0).all() and 0 < weights.sum() < np.inf
        if weights.shape != (len(self.rows),) or not proper:
            raise InvalidInput(
                f"shares must be {len(self.rows)} numbers of at least 0, not all 0; got shape "
                f"{weights.shape} and sum {weights.sum():g}"
            )
        self.shares = weights / weights.sum()
        self.shares.flags.writeable = False

    def given(self, evidence: Mapping[str, int | Sequence[int]]) -> ProductMixtureModel:
        """Return the exact model of the records in which each attribute has the given code, or one
        of the given codes.

        Within each row the other attributes keep their distributions; a row's share is multiplied
        by its probability of the evidence. The total is the expected number of such records. Raises
        InvalidInput for unknown attributes or codes, and if the model has no such records.

        >>> model = ProductMixtureModel(
        ...     Domain({"a": 2, "b": 2}), [[1, 0, 1, 0], [0.5, 0.5, 0, 1]], total=10)
        >>> model.given({"a": 0}).marginal(["b"])
        array([5. , 2.5])
        """
        rows, shares = np.array(self.rows), np.array(self.shares)
        for name, codes in evidence.items():
            allowed = self.domain.allowed(name, codes)
            part = rows[:, self._columns.of(name)] * allowed
            mass = part.sum(1)
            shares *= mass
            # A row that cannot meet the evidence gets share 0, so its values do not matter.
            part[mass == 0] = 1.0
            rows[:, self._columns.of(name)] = part / part.sum(1, keepdims=True)
        share = shares.sum()
        if share < TINY:
            raise InvalidInput(
                f"the model has no records with the given values of {', '.join(evidence)}"
            )
        return type(self)(self.domain, rows, self.total * share, shares)

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the marginal over `attrs` in counts, axes in their order."""
        checked = self.domain.clique(attrs)
        return self.marginals([checked])[checked]

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, Array]:
        """Return marginals in counts, by clique, computed in batched matrix products."""
        checked = [self.domain.clique(clique) for clique in cliques]
        rows, shares = torch.tensor(self.rows), torch.tensor(self.shares)
        tables = ProductAnswers(self._columns, checked)(rows, shares)
        return {clique: np.asarray(tables[clique].numpy() * self.total) for clique in checked}

    def _answered(self, query: FactoredQuery) -> Array:
        """Return the sum of each row's answer, weighted by the rows' shares, times the total, in
        the query's ``answer_shape``.

        >>> from pgmkit.queries import prefix
        >>> model = ProductMixtureModel(Domain({"a": 2, "b": 2}), [[1, 0, 0.5, 0.5]], total=10)
        >>> model.answer(FactoredQuery({"b": prefix(2)}))
        array([ 5., 10.])
        """
        query.check(self.domain)
        total = np.zeros(math.prod(query.shape))
        chunk = 4096  # rows at a time, so that their outer products stay small
        for start in range(0, len(self.rows), chunk):
            rows = self.rows[start : start + chunk]
            parts = [
                (factor @ rows[:, self._columns.of(name)].T).T
                for name, factor in query.factors.items()
            ]
            left = self.shares[start : start + chunk, None]
            for part in parts[:-1]:
                left = (left[:, :, None] * part[:, None, :]).reshape(len(rows), -1)
            last = parts[-1] if parts else np.ones((len(rows), 1))
            total += (left.T @ last).ravel()
        return (total * self.total).reshape(query.answer_shape)

    def sample(self, n: int, *, rng: Rng = None) -> Dataset:
        """Draw `n` records: every row gives n times its share of them, rounded up or down at
        random, and their order is shuffled.

        `rng`: a seed, a numpy Generator, or None for a fresh one. Raises InvalidInput unless n is a
        whole number, 1 or more, and ModelTooLarge for more records than there is memory for.
        """
        check_draw(n, self.domain)
        random = generator(rng)
        order = random.permutation(len(self.rows))
        origin = random.permutation(order[systematic(self.shares[order], n, random)])
        columns = {
            name: draw_independent(self._simplex(name), origin, random, (name,))
            for name in self.domain
        }
        return Dataset(self.domain, columns)

    def save(self, path: FilePath) -> None:
        """Write the model to one file, completely or not at all; `load` reads it."""
        arrays = {"rows": self.rows, "shares": self.shares}
        header = {"domain": dict(self.domain.sizes), "total": self.total}
        write_container(path, self.format, header, arrays)

    @classmethod
    def load(cls, path: FilePath, *, max_bytes: int = LARGEST) -> ProductMixtureModel:
        """Read a model that `save` wrote. Raises InvalidInput for any other file, and for one that
        would expand to more than `max_bytes`.
        """
        with refusing(path, f"a {cls.format} file"):
            header, arrays = read_container(path, cls.format, max_bytes)
            return cls(Domain(header["domain"]), arrays["rows"], header["total"], arrays["shares"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.rows)} rows, total {self.total:g}>"

    def _simplex(self, name: str) -> Array:
        return self.rows[:, self._columns.of(name)]

    def _check_rows(self) -> None:
        """Raise InvalidInput for rows that are no probabilities; scale the others, whose sums may
        be off by rounding, to sum to 1.
        """
        for name in self.domain:
            part = self._simplex(name)
            sums = part.sum(1, keepdims=True)
            if not (part.min() >= 0 and np.abs(sums - 1).max() <= 1e-4):
                raise InvalidInput(
                    f"the rows' values of {name!r} must be probabilities, at least 0 and summing "
                    f"to 1; normalise them, or use RelaxedRowsModel for rows off the simplex"
                )
            part /= sums


class PairMixtureModel(ProductMixtureModel):
    """A mixture of product distributions that was fitted to pairs of attributes, and to nothing
    larger. Records are drawn from a mixture nearer to independence, `flattened`, in which each row
    is moved towards the one-way marginals.

    Pairs do not determine the joint distribution of three attributes. Of all distributions with
    given pairs, the one of largest entropy assumes nothing else about three attributes. A mixture
    of a few hundred rows has a smaller entropy: with little noise each of its rows is nearly a
    single record. Records are therefore not drawn from these rows, but from rows nearer to
    independence. Their codes are then replaced until their pairs are near those of the mixture
    (`mechanisms.release.record`), which thousands of records can achieve with a larger entropy
    than a few hundred rows.

    >>> model = PairMixtureModel(Domain({"a": 2, "b": 2}), [[1, 0, 0.8, 0.2], [0, 1, 0.2, 0.8]], 10)
    >>> model.flattened().rows.round(2)
    array([[1.  , 0.  , 0.74, 0.26],
           [0.  , 1.  , 0.26, 0.74]])
    """

    format = "pgmkit mixture of pairs"

    def flattened(self, share: float = 0.25) -> ProductMixtureModel:
        """Return a mixture nearer to independence: each row becomes its weighted geometric mean
        with the mixture's one-way marginals, scaled to sum to 1 in each attribute.

        `share`: the weight of independence. Records drawn with the default have, at epsilon 10,
        0.86, 0.91 and about 0.7 times the error in triples of records drawn from the rows as they
        are, and 1.05, 1.03 and 1 times their error in pairs (diamonds, CPS1988 and a drawn network
        of 14 columns). With 0.5 the figures are 0.75, 0.88 and 0.5 in triples, and 1.16, 1.06 and 1
        in pairs: replacing single codes restores strong relations only in part.
        """
        rows = (self.shares @ self.rows) ** share * self.rows ** (1 - share)
        for name in self.domain:
            part = rows[:, self._columns.of(name)]
            part /= part.sum(1, keepdims=True)
        return ProductMixtureModel(self.domain, rows, self.total, self.shares)

    def first_records(self, n: int, *, rng: Rng = None) -> Dataset:
        """Return `n` records drawn from `flattened`. Exchanges of their codes then bring their
        pairs near those of the model (`mechanisms.release.record`).
        """
        return self.flattened().sample(n, rng=rng)


class RelaxedRowsModel(ProductMixtureModel):
    """RAP's rows in [-1, 1], which are not probabilities: product queries of them need not be
    consistent.

    Marginals and answers are means of products of the entries (so they may be negative, and a
    marginal need not sum to `total`). Records are drawn from the positive parts, scaled to sum to 1
    within each attribute (uniform if none is positive): the randomised rounding of RAP.
    """

    format = "pgmkit relaxed rows"

    def given(self, evidence: Mapping[str, int | Sequence[int]]) -> ProductMixtureModel:
        """Raise InvalidInput, since relaxed rows are not a distribution that can be conditioned."""
        raise InvalidInput(
            "relaxed rows are no distribution and cannot be conditioned; use rap-softmax"
        )

    def _check_rows(self) -> None:
        """Raise InvalidInput for rows with entries outside [-1, 1]."""
        if not (np.abs(self.rows) <= 1).all():
            raise InvalidInput("relaxed rows must lie in [-1, 1]; clamp them first")

    def _simplex(self, name: str) -> Array:
        positive = np.maximum(self.rows[:, self._columns.of(name)], 0.0)
        sums = positive.sum(1, keepdims=True)
        uniform = np.full_like(positive, 1 / positive.shape[1])
        return np.divide(positive, sums, out=uniform, where=sums > 0)


def systematic(weights: Array, count: int, random: np.random.Generator) -> NDArray[np.intp]:
    """Return `count` places of the weights, in rising order: one is drawn from each of `count`
    equal intervals of their cumulative sums, so a place is drawn `count` times its share of the
    weights, rounded up or down. `weights`: at least 0, with a sum above 0, which is not checked.

    >>> systematic(np.array([1.0, 0.0, 3.0]), 4, np.random.default_rng(0))
    array([0, 2, 2, 2])
    """
    reached = np.cumsum(weights)
    # A number below 1 times the sum is below the sum, in floating point too.
    drawn = np.minimum((np.arange(count) + random.random()) / count, np.nextafter(1.0, 0.0))
    return np.searchsorted(reached, drawn * reached[-1], side="right")
