"""How many threads work, and on what."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

__all__ = ["cores", "in_threads", "one_thread", "threads_for"]

T = TypeVar("T")


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread in the block: threads cost small operations more than they give."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def threads_for(multiplications: float, worth: float) -> Iterator[None]:
    """torch on all its threads for work of at least ``worth`` multiplications, else on one."""
    if multiplications >= worth:
        yield
        return
    with one_thread():
        yield


def cores() -> int:
    """Cores that this process may use: those it may run on, and no more than OMP_NUM_THREADS.

    >>> cores() >= 1
    True
    """
    own = getattr(os, "sched_getaffinity", None)
    there = len(own(0)) if own is not None else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return max(1, min(there, int(asked))) if asked.isdigit() else there


def in_threads(tasks: Iterable[Callable[[], T]], threads: int) -> Iterator[T]:
    """The tasks' results in order, so many tasks worked on at once; none begun far ahead.

    What a task raises is raised where its result would come. With one thread nothing is begun
    before it is asked for.

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
