"""Functions that set the threads and the precision of numerical libraries, and run tasks in
threads.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, wraps
from itertools import islice
from threading import Lock, local
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from pgmkit.runtime.deferred import torch

T = TypeVar("T")


def process_wide(
    setting: Callable[[], contextlib._GeneratorContextManager[None]],
) -> Callable[[], contextlib._GeneratorContextManager[None]]:
    """Return a setting of the whole process for blocks that several threads may run at once: the
    first block to begin makes it, and the last one to end undoes it. If each block undid its own,
    the last could restore what it had found: the setting of another block.
    """
    lock, made, blocks = Lock(), contextlib.ExitStack(), 0

    def renew() -> None:
        nonlocal lock
        lock = Lock()  # a fork does not have the thread that may have held it

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)

    @wraps(setting)
    @contextlib.contextmanager
    def shared() -> Iterator[None]:
        nonlocal blocks
        with lock:
            if not blocks:
                made.enter_context(setting())
            blocks += 1
        try:
            yield
        finally:
            with lock:
                blocks -= 1
                if not blocks:
                    made.close()

    return shared


class _Blocks(local):
    """The blocks of `one_thread` that run: their number in this thread, and in all threads; and the
    number of torch's threads outside of them, in this thread and where the first of them began.
    """

    here, outside = 0, 1
    running, before, lock = [0], [1], Lock()


_blocks = _Blocks()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread in the block: more threads make small operations slower.

    torch's number of threads is that of the present thread, and of threads that begin later. So a
    thread that begins while a block of another one runs has one thread, and gets back `before`.
    """
    with _blocks.lock:
        seen = torch.get_num_threads()
        if not _blocks.running[0]:
            _blocks.before[0] = seen
        if not _blocks.here:
            _blocks.outside = seen if seen > 1 else _blocks.before[0]
        _blocks.here += 1
        _blocks.running[0] += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _blocks.lock:
            _blocks.here -= 1
            _blocks.running[0] -= 1
            if not _blocks.here:
                torch.set_num_threads(_blocks.outside)


def _use_one_thread() -> None:
    """Set torch, if it is loaded, to one thread, in a fork."""
    _Blocks.lock = Lock()
    if (loaded := sys.modules.get("torch")) is not None:  # an import could wait for a lost thread
        loaded.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    # A fork has none of the threads that torch had started, and would wait for them for ever.
    os.register_at_fork(after_in_child=_use_one_thread)


@cache
def _thread_pools() -> ThreadpoolController:
    """Return the thread pools of the loaded BLAS libraries. They are kept, since finding them takes
    milliseconds.
    """
    import scipy.linalg  # noqa: F401 - a BLAS of its own, which is not found before it is loaded

    return ThreadpoolController().select(user_api="blas")


@process_wide
@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run the BLAS libraries of numpy and scipy on one thread in the block.

    A decomposition of a small matrix is a thousand parallel loops; if other work keeps the cores
    busy, each loop waits for a core: seconds instead of milliseconds.
    """
    limits = _thread_pools().limit(limits=1)
    try:
        yield
    finally:
        # threadpoolctl lets the first thread alone change OpenBLAS, until it gives that right up;
        # the last block may end in another thread.
        _release_blas()
        limits.restore_original_limits()
        _release_blas()


def _release_blas() -> None:
    for pool in _thread_pools().lib_controllers:
        if hasattr(pool, "clear_controlling_thread"):  # not in older versions, nor for MKL
            pool.clear_controlling_thread(force=True)


@process_wide
@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Compute matrix products on a GPU in full precision in the block: the three digits of TF32 are
    too few for marginals.
    """
    coarse = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = coarse


@contextlib.contextmanager
def pass_settings() -> Iterator[None]:
    """Set up torch and the BLAS libraries of numpy and scipy for inference passes in the block.

    Denormal numbers are flushed to zero, since they slow matrix products a hundredfold and are
    negligible compared with a partition function. The BLAS libraries use one thread, no gradients
    are recorded, and matrix products have full precision. On exit the settings are what they were,
    except that denormal numbers are kept in any case.
    """
    torch.set_flush_denormal(True)
    try:
        with one_blas_thread(), _full_precision(), torch.inference_mode():
            yield
    finally:
        torch.set_flush_denormal(False)


def threads_for(multiplications: float, worth: float) -> contextlib.AbstractContextManager[None]:
    """Return a context in which torch uses all its threads if the work takes at least ``worth``
    multiplications, and one thread otherwise.
    """
    return contextlib.nullcontext() if multiplications >= worth else one_thread()


def cores() -> int:
    """Return the number of cores that this process may use, at most OMP_NUM_THREADS.

    >>> cores() >= 1
    True
    """
    own = getattr(os, "sched_getaffinity", None)
    there = len(own(0)) if own is not None else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return max(1, min(there, int(asked))) if asked.isdigit() else there


def in_threads(tasks: Iterable[Callable[[], T]], threads: int) -> Iterator[T]:
    """Yield the tasks' results in order, with up to ``threads`` tasks at work at once.

    What a task raises is raised where its result would come. With one thread, a task begins only
    when its result is asked for.

    >>> list(in_threads([lambda i=i: i * i for i in range(5)], 2))
    [0, 1, 4, 9, 16]
    """
    upcoming = iter(tasks)
    if threads <= 1:
        for task in upcoming:
            yield task()
        return
    with ThreadPoolExecutor(threads) as pool:
        running: deque[Future[T]] = deque(pool.submit(each) for each in islice(upcoming, threads))
        try:
            while running:
                done = running.popleft().result()
                for task in islice(upcoming, 1):
                    running.append(pool.submit(task))
                yield done
        finally:
            for left in running:
                left.cancel()
