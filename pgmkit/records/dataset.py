"""Integer-coded records over a domain, and their marginals, counted on the processor or a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgmkit.domain import Clique, Domain, check_domain
from pgmkit.errors import InvalidInput, ModelTooLarge, check_known
from pgmkit.records.counting import Codes, CountingPlan, check_memory
from pgmkit.runtime.arguments import any_array, listed, mapped
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.devices import check_room, device_of
from pgmkit.runtime.memory import available
from pgmkit.runtime.sizes import TABLE_CELLS


class Counts(Protocol):
    """Records that can be counted, wherever they are: in a Dataset, on a GPU or in an engine."""

    @property
    def domain(self) -> Domain: ...
    def __len__(self) -> int: ...
    def marginals(self, cliques: Iterable[Iterable[str]]) -> Mapping[Clique, NDArray[np.int64]]: ...


class Dataset:
    """Records: one column of codes 0 .. size - 1 for each attribute of `domain`.

    `columns` maps each attribute to a 1-D array-like of whole numbers (floats are accepted when
    every one is whole), all of one length, with at least one row. Columns are copied into the
    smallest unsigned type and are read-only. `unread`: for each attribute, the number of values
    that could not be read when the records were coded; None if that is not known.

    Raises InvalidInput for a missing or unknown column, one that is not 1-D, columns of unequal
    length, no rows, values that are not codes of the attribute, or `unread` without a whole number
    of at least 0 for an attribute. Rows can be private: neither the errors nor the repr show a
    value or a number of rows.

    >>> data = Dataset(Domain({"age": 3, "sex": 2}), {"sex": [0, 1, 1], "age": [2, 0, 0]})
    >>> data.marginal(("age", "sex"))
    array([[0, 2],
           [0, 0],
           [1, 0]])
    >>> data
    Dataset(Domain({'age': 3, 'sex': 2}))
    """

    __slots__ = ("_columns", "_domain", "_rows", "_unread")

    def __init__(
        self,
        domain: Domain,
        columns: Mapping[str, ArrayLike],
        *,
        unread: Mapping[str, int] | None = None,
    ) -> None:
        check_domain(domain)
        mapped(columns, "columns", "attributes to codes, such as {'age': [0, 3]} or dict(frame)")
        check_known(domain, columns, "columns must have codes of", "it has those of")
        check_known(columns, domain, "columns must be those of the domain, not", "these are")
        self._domain = domain
        codes = {a: _checked_codes(a, columns[a], domain.sizes[a]) for a in domain}
        self._columns = _Columns(codes)
        lengths = {a: len(own) for a, own in codes.items()}
        first, *others = lengths
        for attribute in others:
            if lengths[attribute] != lengths[first]:
                raise InvalidInput(
                    f"columns {first!r} and {attribute!r} have different lengths; "
                    "give every column one code for each row"
                )
        if lengths[first] == 0:
            raise InvalidInput("the columns have no rows; a dataset needs at least one row")
        self._rows = lengths[first]
        self._unread = None if unread is None else _checked_unread(domain, unread)

    @property
    def domain(self) -> Domain:
        """The domain of the records."""
        return self._domain

    @property
    def columns(self) -> Mapping[str, Codes]:
        """The codes of each attribute: read-only arrays of the smallest unsigned type, in a
        read-only dict, of which ``pandas.DataFrame`` makes a frame.
        """
        return self._columns

    @property
    def unread(self) -> Mapping[str, int] | None:
        """For each attribute the number of values that could not be read when the records were
        coded; None if that is not known.

        The rows of these values hold the code of some other value. The numbers are exact, and as
        private as the rows.
        """
        return None if self._unread is None else MappingProxyType(self._unread)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows

    def __repr__(self) -> str:
        return f"Dataset({self._domain!r})"

    def marginal(self, clique: Iterable[str]) -> NDArray[np.int64]:
        """Return the counts of rows for each combination of values: int64, of shape
        `domain.shape(clique)`.

        Raises InvalidInput for a bare string, a set, unknown or duplicate attributes; ModelTooLarge
        when the table takes more than 2 GiB (`pgmkit.records.counting.MEMORY_LIMIT`).
        """
        (table,) = self.marginals([self._domain.clique(clique)]).values()
        return table

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, NDArray[np.int64]]:
        """Return the marginal of every clique, counted together: for many rows and cliques this is
        much faster than one at a time.

        Keys are the cliques as tuples in the order given (a repeated clique appears once); the
        arrays are independent of each other. Errors are those of `marginal`, with the limit applied
        to all tables of the call together.

        >>> data = Dataset(Domain({"a": 2, "b": 2}), {"a": [0, 1, 1], "b": [1, 1, 0]})
        >>> data.marginals([("a",), ("b", "a")])[("b", "a")]
        array([[0, 1],
               [1, 1]])
        """
        content = "cliques, such as [('age', 'sex')]"
        wanted = [self._domain.clique(each) for each in listed(cliques, "cliques", content)]
        return CountingPlan(self._domain.sizes, wanted, self._rows).count(self._columns, self._rows)

    def on(self, device: str | torch.device) -> Counts:
        """Return the same records on a CUDA GPU, which counts their marginals there, or this data
        set itself for "cpu".

        "auto" uses a GPU if there is one. Raises InvalidInput for a device that is not there,
        ModelTooLarge if a GPU has not enough free memory.

        >>> data = Dataset(Domain({"a": 2}), {"a": [0, 1, 1]})
        >>> data.on("cpu") is data
        True
        """
        where = device_of(device)
        return self if where.type == "cpu" else DeviceRecords(self._domain, self._columns, where)

    def project(self, attrs: Iterable[str]) -> Dataset:
        """Return the same rows over `attrs` only, in the given order; columns are shared, not
        copied.

        Raises InvalidInput for a bare string, a set, unknown or duplicate attributes.
        """
        projected = Dataset.__new__(Dataset)
        projected._domain = self._domain.project(attrs)
        projected._columns = _Columns({a: self._columns[a] for a in projected._domain})
        projected._rows = self._rows
        known = self._unread
        projected._unread = None if known is None else {a: known[a] for a in projected._domain}
        return projected


class _Columns(dict[str, Codes]):
    """A read-only dict of a data set's columns. It is a dict because ``pandas.DataFrame`` makes no
    columns of any other mapping.
    """

    def _refused(self, *given: Any, **named: Any) -> Any:
        raise TypeError("the columns of a data set are read-only; make another with Dataset")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refused

    def __reduce__(self) -> tuple[type[_Columns], tuple[dict[str, Codes]]]:
        return _Columns, (dict(self),)  # a copy is made at once, as no item can be set afterwards


class DeviceRecords:
    """The columns of a data set on a GPU, made by ``Dataset.on``.

    Its counts equal those of the data set, in whose place it can be given to a mechanism. Raises
    ModelTooLarge if the GPU has not enough free memory.
    """

    def __init__(self, domain: Domain, columns: Mapping[str, Codes], device: torch.device) -> None:
        self.domain, self.device = domain, device
        self._rows = len(columns[domain.attributes[0]])
        wide = sum(1 if size <= 256 else 8 for size in domain.shape())
        if self._rows * wide + 24 * min(self._rows, TABLE_CELLS) > available(device):
            # The bytes that are needed would tell the number of rows, which can be private.
            raise ModelTooLarge(
                f"the data set needs more memory than {device} has free; count it on the processor"
            )
        # A code of a column of up to 256 values takes one byte, any other eight.
        self._columns = {
            name: torch.tensor(c if c.dtype == np.uint8 else c.astype(np.int64), device=device)
            for name, c in columns.items()
        }

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows

    def __repr__(self) -> str:
        return f"DeviceRecords({self.domain!r}, {str(self.device)!r})"

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, NDArray[np.int64]]:
        """Return the marginal of every clique, as ``Dataset.marginals`` does."""
        wanted = list(dict.fromkeys(self.domain.clique(clique) for clique in cliques))
        check_memory(wanted, self.domain.sizes)
        return {clique: self._counted(clique) for clique in wanted}

    def _counted(self, clique: Clique) -> NDArray[np.int64]:
        """Return the marginal of one clique, counted block by block of the records."""
        shape = self.domain.shape(clique)
        cells = prod(shape)
        check_room(self.device, 24 * cells, f"the marginal over {clique!r}")
        counts = torch.zeros(cells, dtype=torch.int64, device=self.device)
        for start in range(0, self._rows, TABLE_CELLS):
            end = min(self._rows, start + TABLE_CELLS)
            codes = torch.zeros(end - start, dtype=torch.int64, device=self.device)
            for name, size in zip(clique, shape, strict=True):
                codes = codes.mul_(size).add_(self._columns[name][start:end])
            counts += torch.bincount(codes, minlength=cells)
        return np.asarray(counts.cpu().numpy()).reshape(shape)


def _checked_unread(domain: Domain, unread: Mapping[str, int]) -> dict[str, int]:
    counts = mapped(unread, "unread", "attributes to numbers of values")
    for name in domain:
        count = counts.get(name)
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 0:
            raise InvalidInput(f"unread must have a whole number, 0 or more, for {name!r}")
    return {name: int(counts[name]) for name in domain}


def _checked_codes(attribute: str, values: ArrayLike, size: int) -> Codes:
    """Return a read-only copy of a column in the smallest unsigned type. Raises InvalidInput unless
    it is one-dimensional and holds only whole numbers 0..size-1, and for a size above 2**64.
    """
    dtype = np.min_scalar_type(size - 1)
    if dtype.kind != "u":
        raise InvalidInput(
            f"attribute {attribute!r} has more than 2**64 values, the most a dataset can code; "
            "merge values into bins"
        )
    codes = any_array(values, f"column {attribute!r}")
    if codes.ndim != 1:
        raise InvalidInput(
            f"column {attribute!r} must be one-dimensional, got {codes.ndim} dimensions"
        )
    if codes.size and codes.dtype.kind not in "iuf":
        raise InvalidInput(
            f"column {attribute!r} holds values of type {codes.dtype}; it must hold integer codes "
            f"0..{size - 1}: replace each value by its index in the list of values"
        )
    # NaN fails the comparisons, and infinities are outside the range.
    if codes.size and not (codes.min().item() >= 0 and codes.max().item() <= size - 1):
        raise InvalidInput(
            f"column {attribute!r} holds codes outside 0..{size - 1}; recode its values "
            "(missing ones need a code of their own) or give the attribute a larger size"
        )
    if codes.dtype.kind == "f" and not np.array_equal(codes, np.floor(codes)):
        raise InvalidInput(
            f"column {attribute!r} holds fractions; it must hold integer codes 0..{size - 1}: "
            "bin the values"
        )
    stored = codes.astype(dtype)
    stored.setflags(write=False)
    return stored


class NoRows(Dataset):
    """A data set without records, whose counts are 0. `Dataset` itself refuses columns without
    rows.

    >>> NoRows(Domain({"sex": 2})).marginals([("sex",)])
    {('sex',): array([0, 0])}
    """

    __slots__ = ()

    def __init__(self, domain: Domain) -> None:
        self._domain, self._rows = domain, 0
        self._columns = _Columns({a: _checked_codes(a, (), domain.sizes[a]) for a in domain})
        self._unread = dict.fromkeys(domain, 0)
