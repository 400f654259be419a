"""What a run hands to its mechanism, and what it says of the release."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from mechanisms import MECHANISMS, Curator, dispatch, run
from mechanisms.dispatch import only_measures, run_on, warn_of_poor_fit
from mechanisms.privacy.budget import Budget
from mechanisms.registry import Entry
from mechanisms.workload import Workload, k_way
from pgmkit import Dataset, Domain, InvalidInput, Measurement, NotCertified, Zeros

DATA = Dataset(Domain({"a": 2, "b": 3}), {"a": [0, 1, 1], "b": [0, 1, 2]})
PAIRS = k_way(DATA.domain, 2)


@dataclass(frozen=True)
class Told:
    """Settings of a mechanism that returns what it is given."""

    measures: Any = None


def told(*arguments: Any, **options: Any) -> tuple[Any, ...]:
    return (*arguments, options)


ENTRY = Entry("told", __name__, "told", "Told", "what it is given", rounds=False)


def given(entry: Entry, **options: Any) -> Any:
    """The options that the mechanism is given, after the arguments that each is given."""
    curator, settings = Curator(DATA, Budget(1.0), neighbours="add/remove", seed=0), Told()
    *plain, found = run_on(curator, entry, settings, PAIRS.cliques, **options)  # type: ignore[misc]
    assert plain[0] is curator and plain[1] == PAIRS and plain[2] is settings
    return found


def test_a_mechanism_is_given_what_it_takes() -> None:
    first, zeros = [Measurement(("a",), [1, 2], 1.0)], [Zeros(("a",), [True, False])]
    assert given(ENTRY) == given(ENTRY, first=[], zeros=()) == {}
    assert given(ENTRY, first=first) == {"first": first}
    assert given(ENTRY, first=first, zeros=zeros) == {"first": first, "zeros": zeros}
    report: Any = print
    assert given(ENTRY, progress=report) == {}
    assert given(replace(ENTRY, rounds=True), progress=report) == {"progress": report}
    assert given(replace(ENTRY, public=True), public=DATA) == {"public": DATA}


def merging(*arguments: Any, bins: Any = None) -> tuple[Any, ...]:
    return (*arguments, {} if bins is None else {"bins": bins})


@pytest.mark.parametrize("merges", [False, True])
def test_bins_are_given_to_what_merges_codes(merges: bool) -> None:
    entry = replace(ENTRY, function="merging") if merges else ENTRY
    assert given(entry, bins={"a": 2}) == ({"bins": {"a": 2}} if merges else {})
    assert given(entry) == {}


def test_what_a_mechanism_takes_is_what_its_function_has() -> None:
    taking = {
        argument: {name for name, entry in MECHANISMS.items() if entry.takes(argument)}
        for argument in ("bins", "zeros", "progress", "public")
    }
    assert taking["bins"] >= {"mixture", "pair-graph"}
    assert taking["zeros"] >= {"aim", "gaussian+projection"}
    for name, entry in MECHANISMS.items():
        assert entry.rounds == (name in taking["progress"])
        assert entry.public == (name in taking["public"])


@pytest.mark.parametrize("of_entry", [False, True])
def test_settings_say_what_a_workload_needs_before_the_entry_does(of_entry: bool) -> None:
    entry = replace(ENTRY, measures=of_entry)
    for settings in (Told(), Told(measures=3), Told(measures=0), object()):
        assert only_measures(entry, settings, PAIRS) is of_entry
    for answer in (False, True, 0, 1):

        def needs(workload: Workload, answer: int = answer) -> int:
            assert workload is PAIRS
            return answer

        assert only_measures(entry, Told(measures=needs), PAIRS) is bool(answer)


@pytest.mark.parametrize("name", [n for n, e in MECHANISMS.items() if e.module != "chain_of_pairs"])
def test_functions_of_mechanisms_are_named_and_refuse_settings_of_others(name: str) -> None:
    entry = MECHANISMS[name]
    function, settings = entry.load()
    assert (function.__name__, function.__module__) == (entry.function, entry.module)
    assert function.__doc__ and inspect.signature(function).parameters["settings"].default is None
    curator = Curator(DATA, Budget(1.0), neighbours="add/remove", seed=0)
    with pytest.raises(InvalidInput, match=f"settings must be an? {settings.__name__}"):
        function(curator, PAIRS, Told(), **({"public": DATA} if entry.public else {}))
    assert not curator.ledger.entries


def release(**model: bool) -> Any:
    model_of = SimpleNamespace(**model)
    return SimpleNamespace(mechanism="told", certificate="far from it", model=model_of)


def test_a_poor_fit_is_warned_of_where_it_is_said() -> None:
    with pytest.warns(NotCertified, match="the released model of told is far from it") as found:
        warn_of_poor_fit(release(poor_fit=True), 2)
    assert [each.filename for each in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fine in (release(poor_fit=False), release()):
            warn_of_poor_fit(fine)


def test_a_run_warns_of_a_poor_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    poor = release(poor_fit=True)
    monkeypatch.setattr(dispatch, "run_on", lambda *_, **__: poor)
    with pytest.warns(NotCertified):
        assert run("mst", DATA, PAIRS, 1.0, 1e-6, neighbours="add/remove", seed=0) is poor


@pytest.mark.parametrize(
    "name", [n for n, e in MECHANISMS.items() if e.module[:11] == "mechanisms."]
)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_an_epsilon_that_leaves_no_noise_is_refused_before_anything_is_spent(
    name: str, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spent(*_: object, **__: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr("mechanisms.privacy.ledger.Ledger.charge", spent)
    entry = MECHANISMS[name]
    for epsilon in (1e90, 1e15):
        with pytest.raises(InvalidInput, match="leaves noise of .* too little to compute with"):
            run(name, DATA, PAIRS, epsilon, delta, neighbours="add/remove",
                public=DATA if entry.public else None, accounting="zcdp", seed=0)  # fmt: skip
