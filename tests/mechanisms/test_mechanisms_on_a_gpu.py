"""Mechanisms on a pretend GPU: the releases of the processor, and clear refusals without one."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from pretend_device import GPU, PretendGpu, pretend_gpu

from mechanisms.cli import main
from mechanisms.datasets.census import census
from mechanisms.dispatch import run
from mechanisms.registry import MECHANISMS, configure
from mechanisms.release.record import Measured, Release
from mechanisms.release.tabular import TableRelease
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.workload import k_way
from pgmkit import Dataset, Integer, Measurement, Schema
from pgmkit.errors import InvalidInput, ModelTooLarge

NAMES = ["education", "sex", "income"]
DATA = census(3000).project(NAMES)
PUBLIC = census(500, seed=7).project(NAMES)
WORKLOAD = k_way(DATA.domain, 2)
SMALL = {
    "gem": {"rounds": 2, "steps": 3, "hidden": (16,), "noise_width": 8, "batch_rows": 20},
    "rap": {"rounds": 2, "steps": 5, "rows": 20},
    "rap-softmax": {"rounds": 2, "steps": 5, "rows": 20},
    "rap++": {"rounds": 2, "steps": 5, "rows": 20, "temperatures": (4.0,)},
    "mixture": {"rows": 20, "steps": 3},
    "mwem": {"rounds": 6},
    "pep": {"rounds": 6},
    "pep-pub": {"rounds": 6},
    "pmw-pub": {"rounds": 6},
}
SMALL["gem-pub"] = SMALL["gem"] | {"pretrain_steps": 3}
ON_CARDS = [
    name
    for name in MECHANISMS
    if any(field.name == "device" for field in dataclasses.fields(configure(name)[1]))
]


@pytest.fixture
def gpu() -> Iterator[PretendGpu]:
    with pretend_gpu() as made:
        yield made


def released(name: str, device: str, data: Dataset = DATA) -> Release:
    settings = configure(name, **SMALL.get(name, {}), device=device)[1]
    public = PUBLIC if MECHANISMS[name].public else None
    return run(settings, data, WORKLOAD, 5.0, 1e-6, neighbours="replace-one", public=public, seed=3)


def asked(measured: Measured) -> object:
    return measured.clique if isinstance(measured, Measurement) else measured.predicate


def test_all_that_compute_have_a_device() -> None:
    assert {
        "aim",
        "mst",
        "pair-graph",
        "mwem+pgm",
        "clique-tree",
        "mwem",
        "pep",
        "gem",
        "rap",
    } <= set(ON_CARDS)


@pytest.mark.parametrize("name", ON_CARDS)
def test_releases_are_those_of_the_processor(gpu: PretendGpu, name: str) -> None:
    here = released(name, "cpu")
    gpu.reset()
    there = released(name, "cuda")
    assert gpu.launches > 0, "nothing ran on the GPU"
    assert list(map(asked, there.measurements)) == list(map(asked, here.measurements))
    tables, others = (r.model.marginals(WORKLOAD.cliques) for r in (here, there))
    for clique, table in tables.items():
        np.testing.assert_allclose(others[clique], table, rtol=1e-4, atol=0.02 * len(DATA) ** 0.5)
    if MECHANISMS[name].records:
        assert len(there.sample(50, rng=0)) == 50


def test_a_release_from_a_gpu_is_read_without_one(tmp_path: Path) -> None:
    with pretend_gpu():
        released("mst", "cuda").save(f"{tmp_path}/made.pgm")
    again = Release.load(f"{tmp_path}/made.pgm")
    assert again.settings == configure("mst")[1]
    assert again.model.potentials[0].values.device == torch.device("cpu")


@pytest.mark.parametrize("name", ON_CARDS)
def test_without_a_gpu_settings_are_refused(name: str) -> None:
    assert configure(name, device="auto")[1].device == "auto"
    for device in ("cuda", "cuda:1", "tpu", None):
        with pytest.raises(InvalidInput, match=r'device must be "cpu", "auto", or a CUDA GPU'):
            configure(name, device=device)


def test_a_histogram_too_large_for_the_gpu_costs_nothing() -> None:
    with pretend_gpu(gpu_bytes=1 << 10), pytest.raises(ModelTooLarge, match="1 KiB|0 MiB free"):
        released("mwem", "cuda")


def test_running_out_of_memory_is_said(gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB")

    monkeypatch.setattr("mechanisms.families.training.Targets", full)
    with pytest.raises(ModelTooLarge, match=r"3\.00 GiB.*device='cpu'"):
        released("gem", "cuda")


SCHEMA = Schema({name: Integer(0, size - 1) for name, size in DATA.domain.sizes.items()})


def made(device: str | None, mechanism: str = "mst", **more: object) -> TableRelease:
    return synthesize(
        DATA, SCHEMA, epsilon=5.0, delta=1e-6, mechanism=mechanism, seed=3, device=device, **more
    )


@pytest.mark.parametrize("mechanism", ["mst", "aim"])
def test_synthesize_on_a_gpu(gpu: PretendGpu, mechanism: str) -> None:
    here, there = made("cpu", mechanism), made("cuda", mechanism)
    assert there.settings.device == "cuda" and there.model.potentials[0].values.device == GPU
    # A GPU takes no proximal steps, so the two searches may end at different models. The loss is at
    # least half the squared distance from the optimum, in standard deviations of each measurement.
    apart = sum(math.sqrt(2 * release.release.model.gap) for release in (here, there))
    for each in here.release.measurements:
        ours, theirs = (release.model.marginal(each.clique) for release in (here, there))
        np.testing.assert_allclose(theirs, ours, atol=each.stddev * apart + 1e-6)
    drawn = [
        np.unique(release.sample(500, rng=0)["education"], return_counts=True)[1]
        for release in (here, there)
    ]
    np.testing.assert_allclose(drawn[1], drawn[0], atol=2)


def test_a_device_that_synthesize_refuses() -> None:
    with pytest.raises(InvalidInput, match='\'cuda\' is not there.*Pass device="cpu" or "auto"'):
        made("cuda")
    with pytest.raises(InvalidInput, match="has no setting 'device'"):
        made("cpu", "matrix")
    with pytest.raises(InvalidInput, match="device is given twice"):
        made("cpu", settings={"device": "auto"})


def test_commands_take_a_device(gpu: PretendGpu, tmp_path: Path) -> None:
    tables = tmp_path / "tables.json"
    tables.write_text(json.dumps([{"columns": ["a"], "values": [30.0, 70.0], "stddev": 2.0}]))
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"a": 2}))
    command = ["estimate", str(tables), "--schema", str(schema), "--out", f"{tmp_path}/m.pgm"]
    gpu.reset()
    done = CliRunner().invoke(main, [*command, "--device", "cuda"])
    assert done.exit_code == 0, done.output
    assert gpu.launches > 0
    assert Release.load(f"{tmp_path}/m.pgm").model.marginal(["a"]) == pytest.approx([30, 70], abs=1)
    done = CliRunner().invoke(main, [*command, "--device", "cuda:7"])
    assert done.exit_code != 0 and "'cuda:7' is not there" in done.output
