"""The weights of histograms on their device: numpy's arrays, or torch's tensors on a GPU.

Both slice, multiply in place and add up alike; the operations that differ are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.runtime.arrays import Array

if TYPE_CHECKING:
    import torch


def placed(values: Any, device: torch.device | None) -> Any:
    """Return a float64 copy: a numpy array if the device is None or the processor, else a tensor on
    the GPU.
    """
    whole = np.array(values, dtype=np.float64)
    if device is None or device.type == "cpu":
        return whole
    import torch

    return torch.from_numpy(whole).to(device)


def binned(weights: Any, places: NDArray[np.int64], cells: int) -> Any:
    """Return the sum of the weights in each of `cells` cells; `places` has the cell of each
    weight.
    """
    if isinstance(weights, np.ndarray):
        return np.bincount(places, weights, minlength=cells).astype(np.float64, copy=False)
    import torch

    there = torch.from_numpy(places).to(weights.device)
    return weights.new_zeros(cells).index_add_(0, there, weights)


def index(where: Any, weights: Any) -> Any:
    """Return `where`, slices or places of records, as an index for these weights: places become a
    tensor on a GPU if the weights are there.
    """
    if isinstance(where, tuple) or isinstance(weights, np.ndarray):
        return where
    import torch

    return torch.as_tensor(where, device=weights.device)


def numbers(sums: Sequence[Any]) -> list[float]:
    """Return numpy's or torch's scalars as floats; a GPU is waited for only once."""
    if not sums or isinstance(sums[0], np.generic):
        return [float(each) for each in sums]
    import torch

    found: list[float] = torch.stack(list(sums)).tolist()
    return found


def on_host(tables: Sequence[Any]) -> list[Array]:
    """Return tables as numpy's arrays, from a GPU all in one copy."""
    if not tables or isinstance(tables[0], np.ndarray | np.generic):
        return [*map(np.asarray, tables)]  # numpy's sum over all axes is a scalar
    import torch

    flat = torch.cat([table.reshape(-1) for table in tables]).cpu().numpy()
    parts = np.split(flat, np.cumsum([table.numel() for table in tables])[:-1])
    return [part.reshape(tuple(t.shape)) for part, t in zip(parts, tables, strict=True)]
