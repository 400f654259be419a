"""Every mechanism by its name: runs, budgets, refusals before spending, the command line."""

import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pricing import cut, reachable
from seams import draw_from

from mechanisms import MECHANISMS, run
from mechanisms.cli import main
from mechanisms.datasets.census import census
from mechanisms.dispatch import only_measures, run_on
from mechanisms.mwem_pgm import MwemPgm
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.privacy.noise import SeededNoise
from mechanisms.queries.cells import clique_of
from mechanisms.registry import configure
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round
from mechanisms.synthesis.plan import plan
from mechanisms.workload import WorkloadLike, k_way
from pgmkit import GraphicalModel, Schema, estimate
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset, NoRows
from pgmkit.tables.files.record_files import encode_file, write_file

DATA = census(200).project(["sex", "work", "income"])
PAIRS = k_way(DATA.domain, 2)
PUBLIC = census(150, seed=9).project(["sex", "work", "income"])


def quick(name: str) -> Any:
    """The mechanism's settings, cut short."""
    return configure(name, **cut(name))[1]


def public(name: str) -> dict[str, Dataset]:
    """What a mechanism that needs public records is given."""
    return {"public": PUBLIC} if MECHANISMS[name].public else {}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_every_mechanism_spends_its_budget_and_answers(
    name: str, neighbours: str, delta: float
) -> None:
    release = run(
        quick(name), DATA, PAIRS, 1.0, delta, neighbours=neighbours, seed=0, **public(name)
    )
    assert release.mechanism == name and release.settings == quick(name)
    assert release.ledger.spent == pytest.approx(release.ledger.budget.total, rel=1e-9)
    assert release.ledger.spent <= release.ledger.budget.total * (1 + 1e-9)
    for clique, table in release.model.marginals(PAIRS.cliques).items():
        assert table.shape == DATA.domain.shape(clique)
        assert np.isfinite(table).all()
        assert table.min() >= 0 or not MECHANISMS[name].consistent
    if MECHANISMS[name].records:
        assert len(release.sample(50, rng=0)) == 50
    else:
        with pytest.raises(InvalidInput, match="records cannot be drawn.*pgmkit.estimate"):
            release.sample(50, rng=0)
        noisy, total = release.measurements, release.model.total
        model = estimate(DATA.domain, noisy, total=total, inference="auto")
        assert len(model.sample(50, rng=0)) == 50
    # What the entry says of its model and its noise.
    graphical = isinstance(release.model, GraphicalModel)
    assert MECHANISMS[name].graphical == (graphical and not hasattr(quick(name), "inference"))
    noise = {charge.mechanism for charge in release.ledger.entries}
    measured = noise <= {"discrete Gaussian", "discrete Laplace"}
    assert only_measures(MECHANISMS[name], quick(name), PAIRS) == measured
    assert not release.secure
    assert not [x for x in reachable(release) if isinstance(x, Curator)]
    held = [x for x in reachable(release) if isinstance(x, Dataset)]
    assert not held


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_private_table_without_rows_ends_with_a_release(name: str) -> None:
    """An error would tell it from a table of one row. Thresholds are counted in RAP++ alone."""
    thresholds = {"numeric": ("work",), "labels": ("income",), "steps": 2}
    for more in ({}, thresholds) if name == "rap++" else ({},):
        curator = Curator(NoRows(DATA.domain), Budget(1.0, 1e-6), neighbours="add/remove", seed=0)
        entry, settings = configure(name, **{**cut(name), **more})
        release = run_on(curator, entry, settings, PAIRS, **public(name))
        assert curator.ledger.spent == pytest.approx(curator.ledger.budget.total)
        assert np.isfinite(release.model.marginal(("sex", "work"))).all()


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_answers_two_queries(name: str) -> None:
    """No default asks for more rounds or queries than the smallest workload has."""
    data, few = DATA.project(["sex"]), {"queries": 2} if name.startswith("rap-") else {}
    given = {"public": PUBLIC.project(["sex"])} if MECHANISMS[name].public else {}
    settings = configure(name, **cut(name), **few)[1]
    release = run(settings, data, [("sex",)], 1.0, 1e-6, neighbours="add/remove", seed=0, **given)
    assert release.ledger.spent == pytest.approx(release.ledger.budget.total)
    assert np.isfinite(release.model.marginal(("sex",))).all()


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_takes_cliques_for_a_workload(name: str) -> None:
    settings = quick(name)

    def released(workload: WorkloadLike, direct: bool = False) -> list[np.ndarray]:
        if direct:
            curator = Curator(DATA, Budget(1.0, 1e-6), neighbours="replace-one", seed=0)
            function, _ = MECHANISMS[name].load()
            release = function(curator, workload, settings, **public(name))
        else:
            chosen: Any = {"neighbours": "replace-one", "seed": 0, **public(name)}
            chosen["accounting"] = "zcdp"  # as the direct Curator's budget has it
            release = run(settings, DATA, workload, 1.0, 1e-6, **chosen)
        return list(release.model.marginals(PAIRS.cliques).values())

    expected = released(PAIRS)
    for found in (released([list(c) for c in PAIRS.cliques]), released(iter(PAIRS.cliques), True)):
        for table, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(table, other, rtol=1e-9)
    with pytest.raises(InvalidInput, match="unknown attribute 'age'"):
        released([("sex", "age")])


def test_a_plan_of_cliques_needs_their_domain() -> None:
    options: dict[str, Any] = {"neighbours": "replace-one", "rows": 100}
    expected = plan("mst", PAIRS, 1.0, 1e-6, **options)
    found = plan("mst", iter(PAIRS.cliques), 1.0, 1e-6, domain=DATA.domain, **options)
    assert (found.steps, found.noise) == (expected.steps, expected.noise)
    with pytest.raises(InvalidInput, match="must be a Workload, such as k_way.*got list; .*domain"):
        plan("mst", list(PAIRS.cliques), 1.0, 1e-6, **options)
    with pytest.raises(InvalidInput, match="another domain"):
        plan("mst", PAIRS, 1.0, 1e-6, domain=PUBLIC.project(["sex", "work"]).domain, **options)
    with pytest.raises(InvalidInput, match="gem-pub depends on .*; plan another mechanism"):
        plan("gem-pub", PAIRS, 1.0, 1e-6, **options)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_refuses_before_spending(name: str) -> None:
    other = k_way(census(10).domain, 2)
    with pytest.raises(InvalidInput, match="another domain"):
        run(name, DATA, other, 1.0, neighbours="add/remove", seed=0, **public(name))
    for epsilon, delta in [(0.0, 0.0), (-1.0, 0.0), (float("nan"), 0.0), (1.0, 1.0), (1.0, -0.1)]:
        with pytest.raises(InvalidInput):
            run(name, DATA, PAIRS, epsilon, delta, neighbours="add/remove", **public(name))
    with pytest.raises(InvalidInput, match="replace-one"):
        run(name, DATA, PAIRS, 1.0, neighbours="swap", **public(name))
    if not MECHANISMS[name].public:
        with pytest.raises(InvalidInput, match="uses no public records"):
            run(name, DATA, PAIRS, 1.0, neighbours="add/remove", public=PUBLIC)


class Recording(SeededNoise):
    """Seeded noise that keeps the exact values it was given, and the noisy ones."""

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(0))
        self.exact: list[np.ndarray] = []
        self.noisy: list[np.ndarray] = []

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self.exact.append(counts.astype(float).ravel())
        self.noisy.append(super().gaussian(counts, scale).ravel())
        return self.noisy[-1].reshape(counts.shape)

    def softmax(self, scores: np.ndarray, scale: float) -> int:
        self.exact.append(scores)
        return super().softmax(scores, scale)

    def top(self, scores: np.ndarray, count: int, scale: float) -> list[int]:
        self.exact.append(scores)
        return super().top(scores, count, scale)


@pytest.mark.parametrize("name", MECHANISMS)
def test_nothing_exact_is_released_saved_shown_or_logged(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    curator = Curator(DATA, Budget(1.0, 1e-6), neighbours="add/remove")
    noise = Recording()
    draw_from(curator, noise)
    shown: list[object] = []
    entry, settings = MECHANISMS[name], quick(name)
    options = {"progress": shown.append} if entry.rounds else {}
    release = run_on(curator, entry, settings, PAIRS, **public(name), **options)
    release.save(tmp_path / "release")
    again = Release.load(tmp_path / "release")
    exact = [values for values in noise.exact if len(values) > 2 and np.ptp(values) > 0]
    assert exact
    for thing in reachable([release, again, shown]):
        if isinstance(thing, np.ndarray) and thing.dtype.kind in "fiu":
            flat = thing.astype(float).ravel()
            assert not [e for e in exact if len(e) == len(flat) and np.array_equal(e, flat)]
    secrets = {repr(float(v)) for e in exact for v in e if not float(v).is_integer()}
    assert not [record for record in caplog.messages if any(s in record for s in secrets)]
    assert str(len(DATA)) not in str(release.ledger).split()


IN_ROUNDS = [name for name, entry in MECHANISMS.items() if entry.rounds]


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_every_mechanism_in_rounds_reports_the_same_record(name: str) -> None:
    """One callback for all of them, and every answer that was paid for is released."""
    rounds: list[Round[Any, Any]] = []
    seen: list[float] = []

    def report(finished: Round[Any, Any]) -> None:
        assert finished.picked and finished.cliques == tuple(
            dict.fromkeys(clique_of(each) for each in finished.picked)
        )
        before, after = (
            model.marginals(finished.cliques) for model in (finished.before, finished.after)
        )
        for clique in finished.cliques:
            assert before[clique].shape == after[clique].shape == DATA.domain.shape(clique)
            assert np.isfinite(before[clique]).all() and np.isfinite(after[clique]).all()
        seen.append(sum(float(np.abs(after[c] - before[c]).sum()) for c in finished.cliques))
        for m in finished.measurements:
            assert m.clique in finished.cliques and m.stddev > 0 and np.isfinite(m.values).all()
        rounds.append(finished)

    curator = Curator(DATA, Budget(20.0, 1e-6), neighbours="add/remove")
    noise = Recording()
    draw_from(curator, noise)
    entry, settings = MECHANISMS[name], quick(name)
    release = run_on(curator, entry, settings, PAIRS, progress=report, **public(name))
    assert [each.index for each in rounds] == list(range(len(rounds))) and rounds
    for earlier, later in itertools.pairwise(rounds):
        assert later.before is earlier.after
    assert max(seen) > 0
    total = release.model.total
    if entry.consistent:
        for table in rounds[-1].after.marginals(PAIRS.cliques).values():
            assert table.sum() == pytest.approx(total, rel=1e-3)
    reported = [m for each in rounds for m in each.measurements]
    assert reported == list(release.measurements[len(release.measurements) - len(reported) :])
    released = np.concatenate([m.values for m in release.measurements] or [np.empty(0)])
    np.testing.assert_array_equal(released, np.concatenate(noise.noisy or [np.empty(0)]))


@pytest.mark.parametrize("name", [n for n, e in MECHANISMS.items() if "mechanisms" in e.module])
def test_the_signature_says_which_arguments_may_be_left_out(name: str) -> None:
    entry = MECHANISMS[name]
    function, kind = entry.load()
    allowed = inspect.signature(function).parameters
    required = [each.name for each in allowed.values() if each.default is each.empty]
    assert required in (["curator", "workload"], ["curator", "workload", "public"])
    assert allowed["settings"].default is None
    assert allowed["settings"].annotation == f"{kind.__name__} | None"
    assert allowed["workload"].annotation == "WorkloadLike"


def test_an_unknown_option_is_refused_though_it_is_empty() -> None:
    curator = Curator(DATA, Budget(1.0, 1e-6), neighbours="add/remove", seed=0)
    entry, settings = configure("aim")
    with pytest.raises(InvalidInput, match="unknown option 'firsts' .*'first'.*; options are fir"):
        run_on(curator, entry, settings, PAIRS, firsts=[])
    assert curator.remaining == curator.ledger.budget.total


def test_names_and_settings() -> None:
    with pytest.raises(InvalidInput, match="known are aim, "):
        run("magic", DATA, PAIRS, 1.0, neighbours="add/remove")
    with pytest.raises(InvalidInput, match="it has rounds, one_way_share"):
        configure("mwem+pgm", depth=3)
    with pytest.raises(InvalidInput, match="has no setting 'name'"):
        configure("mst", **{"name": 3})
    with pytest.raises(InvalidInput, match="got int"):
        run(3, DATA, PAIRS, 1.0, neighbours="add/remove")
    by_settings = run(MwemPgm(rounds=2), DATA, PAIRS, 1.0, neighbours="add/remove", seed=1)
    assert by_settings.settings == MwemPgm(rounds=2)
    for entry in MECHANISMS.values():
        function, settings = entry.load()
        assert callable(function) and settings() == configure(entry.name)[1]


def test_the_command_line_runs_any_of_them(tmp_path: Path) -> None:
    write_file(tmp_path / "data.csv", dict(DATA.columns))
    (tmp_path / "schema.json").write_text(json.dumps(dict(DATA.domain.sizes)))
    listed = CliRunner().invoke(main, ["mechanisms"]).output
    for name in MECHANISMS:
        assert name in listed
        out = tmp_path / f"{name}.csv"
        arguments = ["synth", str(tmp_path / "data.csv"), "--schema", str(tmp_path / "schema.json")]
        if public(name):
            write_file(tmp_path / "public.csv", dict(PUBLIC.columns))
            arguments += ["--public", str(tmp_path / "public.csv")]
        for option, value in cut(name).items():
            if not isinstance(value, tuple):
                arguments += ["--set", f"{option}={value}"]
        arguments += ["--mechanism", name, "--epsilon", "1", "--out", str(out), "--seed", "0"]
        result = CliRunner().invoke(main, arguments)
        if not MECHANISMS[name].records:
            assert result.exit_code == 2 and "no records can be drawn" in result.output
            continue
        assert result.exit_code == 0, result.output
        assert len(encode_file(out, Schema.from_dict(DATA.domain.sizes))) > 0
    arguments[arguments.index(name)] = "magic"
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and "known are" in result.output
