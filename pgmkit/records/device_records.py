"""Records on a CUDA GPU, counted there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.records.counting import Codes, check_memory
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.devices import check_room
from pgmkit.runtime.sizes import TABLE_CELLS


class DeviceRecords:
    """The columns of a data set on a GPU, made by ``Dataset.on``.

    Its counts equal those of the data set, in whose place it can be given to a mechanism. Raises
    ModelTooLarge if the GPU has not enough free memory.
    """

    def __init__(self, domain: Domain, columns: Mapping[str, Codes], device: torch.device) -> None:
        self.domain, self.device = domain, device
        self._rows = len(columns[domain.attributes[0]])
        wide = sum(1 if size <= 256 else 8 for size in domain.shape())
        room = self._rows * wide + 24 * min(self._rows, TABLE_CELLS)
        check_room(device, room, "the data set")
        self._columns = {name: _placed(columns[name], device) for name in domain}

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
        found: NDArray[np.int64] = counts.cpu().numpy()
        return found.reshape(shape)


def _placed(codes: Codes, device: torch.device) -> torch.Tensor:
    """Return a column as a tensor on the GPU: one byte a code if that is enough, else eight."""
    held = codes if codes.dtype == np.uint8 else codes.astype(np.int64)
    return torch.tensor(held, device=device)
