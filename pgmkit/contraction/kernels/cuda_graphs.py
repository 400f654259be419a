"""Work that is repeated on the same tensors, captured as a single GPU launch."""

from __future__ import annotations

from collections.abc import Callable

import torch

PLAIN_CALLS = 24
"""The number of ordinary calls before the work is captured. A capture takes about as long as so
many calls, because it waits for the device and empties torch's cache of free memory; so a capture
that is used no further at most doubles the time. The first calls also compile kernels and allocate
buffers, which is not allowed during a capture.
"""


class Captured:
    """A call of ``work()`` that becomes a single launch when it is repeated on a GPU.

    After PLAIN_CALLS calls the work is captured as a CUDA graph, which later calls replay. Before
    that, and on a processor, ``work`` is simply called. ``work`` must read and write the same
    tensors in every call and must not wait for a value on the device. Only ``prepare``, which is
    called once, before the last ordinary call, may make it use other tensors from then on.

    >>> cells = torch.zeros(2)
    >>> more = Captured(lambda: cells.add_(1), cells.device)
    >>> for _ in range(3):
    ...     more()
    >>> cells
    tensor([3., 3.])
    """

    def __init__(
        self,
        work: Callable[[], object],
        device: torch.device,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._work, self._device, self._prepare = work, device, prepare
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def captured(self) -> bool:
        """True if the work has become a single launch."""
        return self._graph is not None

    def __call__(self) -> None:
        self._calls += 1
        if self._device.type == "cuda" and self._calls > PLAIN_CALLS:
            self._replayed().replay()
            return
        if self._calls == PLAIN_CALLS:
            self._prepare()
        self._work()

    def _replayed(self) -> torch.cuda.CUDAGraph:
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            # The stream must be of this GPU, which need not be torch's current one. In this mode
            # the capture does not fail when other threads use the GPU at the same time.
            with (
                torch.cuda.device(self._device),
                torch.cuda.graph(
                    graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"
                ),
            ):
                self._work()
            self._graph = graph
        return self._graph
