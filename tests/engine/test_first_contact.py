"""The steps of the first minutes on a GPU, on one that pretends: only speed is left open."""

import json
from pathlib import Path

import pytest
import torch
from pretend_device import pretend_gpu

from benchmarks import first_contact
from benchmarks.first_contact_steps import STEPS


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.filterwarnings("ignore::pgmkit.errors.NotCertified")
def test_every_step_runs_on_a_gpu(step: str) -> None:
    with pretend_gpu():
        found = STEPS[step]("cuda", True)
    assert json.loads(json.dumps(found))
    differences = found.get("largest relative difference", {})
    assert all(value < 1e-4 for value in differences.values())
    if step == "kernels":
        assert len(differences) == 16 and found["pass: largest relative difference"] < 1e-11


@pytest.mark.filterwarnings("ignore:.*(divide by zero|overflow):RuntimeWarning")
def test_the_step_of_the_kernels_runs_in_tritons_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton", reason="triton (the extra 'gpu') is not installed")
    from pgmkit.contraction import kernels

    monkeypatch.setattr(kernels, "on_gpu", lambda device: True)
    found = STEPS["kernels"]("cpu", True)["largest relative difference"]
    assert len(found) == 16 and max(found.values()) < 1e-6


def test_a_kernel_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from pgmkit.contraction import kernels

    right = kernels.log_contract
    monkeypatch.setattr(kernels, "log_contract", lambda a, b: right(a, b) + 1e-3)
    with pytest.raises(AssertionError, match="log_contract torch.float64 is off by"):
        STEPS["kernels"]("cpu", True)


def test_a_run_goes_on_where_the_last_one_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def run(module: str, request: dict[str, object], seconds: float) -> dict[str, object]:
        asked.append(request.get("step", request.get("job")))
        return {"failed": "lost"} if asked[-1] == "estimates" else {"card": "a GPU"}

    monkeypatch.setattr(first_contact, "run", run)
    out = tmp_path / "found.json"
    arguments = ["first_contact", "--out", str(out), "--small", "--device", "cpu"]
    for _ in range(2):
        monkeypatch.setattr("sys.argv", arguments)
        first_contact.main()
    again = asked[asked.index("sampling") + 1 :]
    assert again == ["versions", "estimates"], "what succeeded is not done again"
    assert {"versions", "estimates", "copies"} <= set(json.loads(out.read_text())["steps"])


def test_torch_knows_the_names_that_are_used() -> None:
    assert {"self_cpu_time_total", "self_device_time_total"} <= set(
        dir(torch.autograd.profiler_util.FunctionEventAvg())
    )
