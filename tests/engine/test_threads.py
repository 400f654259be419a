"""Threads change how long work takes, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from forks import Fork
from threadpoolctl import threadpool_info, threadpool_limits

from pgmkit import Domain, Factor, GraphicalModel
from pgmkit.errors import NotCertified, warn, without
from pgmkit.records import sampling_parts
from pgmkit.runtime.threads import (
    cores,
    in_threads,
    one_thread,
    pass_settings,
    process_wide,
    threads_for,
)
from pgmkit.tables.files.foreign import _unwarned


def squares(n: int) -> list[Callable[[], int]]:
    return [lambda i=i: i * i for i in range(n)]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 3, 40])
def test_results_come_in_order(threads: int, n: int) -> None:
    assert list(in_threads(squares(n), threads)) == [i * i for i in range(n)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_a_fork_waits_for_no_threads_of_torch() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1_000_000).exp()  # starts a thread, which a fork does not have
        assert Fork(lambda: print(torch.get_num_threads())).end() == ("1\n", 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_a_fork_waits_for_no_thread_that_makes_a_setting() -> None:
    begun, forked, made = threading.Event(), threading.Event(), [0]

    @process_wide
    @contextmanager
    def setting() -> Iterator[None]:
        made[0] += 1
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert forked.wait(60)
        yield

    def in_block() -> None:
        with setting():
            print(made[0])

    with ThreadPoolExecutor(1) as pool:
        pool.submit(in_block)
        assert begun.wait(60)
        child = Fork(in_block)
        forked.set()
        assert child.end() == ("2\n", 0)


def test_tasks_run_at_once_and_none_far_ahead() -> None:
    both = threading.Barrier(2, timeout=20)
    begun: list[int] = []

    def meet(i: int) -> int:
        begun.append(i)
        return both.wait() * 0 + i

    found = in_threads((lambda i=i: meet(i) for i in range(4)), 2)  # alone each would wait for ever
    assert next(found) == 0
    assert len(begun) <= 3
    assert list(found) == [1, 2, 3]


def test_an_error_comes_in_its_place() -> None:
    def wrong() -> int:
        raise ZeroDivisionError

    found = in_threads([*squares(1), wrong, *squares(9)], 2)
    assert next(found) == 0
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_cores_are_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for asked, found in [("", 4), ("2", 2), ("2,1", 2), ("16", 4), ("0", 1), ("many", 4)]:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert cores() == found, asked


def test_torch_has_its_threads_back() -> None:
    before = torch.get_num_threads()
    with threads_for(10, worth=11):
        assert torch.get_num_threads() == 1
    with threads_for(11, worth=11):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "block", [one_thread, pass_settings, _unwarned, partial(without, UserWarning)]
)
def test_settings_are_what_they_were_after_threads_at_once(
    block: Callable[[], AbstractContextManager[object]],
) -> None:
    def settings() -> tuple[object, ...]:
        pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
        with ThreadPoolExecutor(1) as new:
            threads = new.submit(torch.get_num_threads).result()
        return pools, threads, torch.get_num_threads(), warnings.filters[:]

    old = torch.get_num_threads()
    torch.set_num_threads(2)
    with threadpool_limits(2, user_api="blas"):
        before, began, both = settings(), threading.Event(), threading.Event()

        def earlier() -> None:
            with block():
                began.set()
                assert both.wait(60)

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(earlier)
            assert began.wait(60)
            with block():
                both.set()
                done.result()
            after = settings()
    torch.set_num_threads(old)
    assert before == after


def test_a_warning_is_left_out_in_one_thread_alone() -> None:
    def told() -> None:
        warn("said", NotCertified, 1)

    with pytest.warns(NotCertified) as found, without(NotCertified), ThreadPoolExecutor(1) as pool:
        told()
        pool.submit(told).result()
    assert len(found) == 1


def test_parts_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    domain = Domain({"a": 4, "b": 5, "c": 3})
    factors = tuple(
        Factor(domain.project(pair), rng.normal(size=domain.shape(pair)))
        for pair in [("a", "b"), ("b", "c")]
    )
    drawn = GraphicalModel(domain, factors, total=1.0).sample_in_parts(5000, 700, rng=0)
    alone = [drawn.part(i) for i in range(drawn.count)]
    for threads in (1, 3):
        monkeypatch.setattr(sampling_parts, "cores", lambda threads=threads: threads)
        for part, expected in zip(drawn.parts(0, drawn.count), alone, strict=True):
            for name in domain:
                np.testing.assert_array_equal(part[name], expected[name])


def test_a_blas_that_is_loaded_later_has_one_thread_too() -> None:
    """scipy brings its own, which inference alone does not load."""
    program = """
from threadpoolctl import threadpool_info
from pgmkit import Domain, Factor, GraphicalModel
from pgmkit.runtime.threads import pass_settings
GraphicalModel(Domain({"a": 2}), (Factor(Domain({"a": 2}), [0.0, 1.0]),), 1.0).marginal(("a",))
with pass_settings():
    import scipy.linalg
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    print([pool["num_threads"] for pool in pools])
print([pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"])
"""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environment |= {"OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    inside, outside = done.stdout.splitlines()
    assert set(inside) == set("[1, ]")
    assert "2" in outside or cores() == 1
