"""Work that is repeated on the same tensors, captured as a single GPU launch."""

from __future__ import annotations

from collections.abc import Callable

import torch

PLAIN_CALLS = 24
"""The number of calls before a capture, which takes about as long as these: it waits for the device
and collects garbage. The first calls compile kernels and allocate buffers, which a capture may not
do.
"""


class Captured:
    """``work()``, which reads and writes fixed tensors only and never waits for one of their
    values.

    On a GPU it is captured as a CUDA graph after some calls, and then each call is one launch,
    however many the work has. Before that, and on a processor, it is simply called.

    >>> cells = torch.zeros(2)
    >>> more = Captured(lambda: cells.add_(1), cells.device)
    >>> for _ in range(3):
    ...     more()
    >>> cells
    tensor([3., 3.])
    """

    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        self._work, self._on_gpu = work, device.type == "cuda"
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        self._calls += 1
        if self._on_gpu and self._calls > PLAIN_CALLS:
            self._replayed().replay()
        else:
            self._work()

    def _replayed(self) -> torch.cuda.CUDAGraph:
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the GPU meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._work()
            self._graph = graph
        return self._graph
