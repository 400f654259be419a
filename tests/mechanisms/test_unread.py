"""Values that the schema could not read: counted, paid for, and asked about before the rest."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from replay import assert_same, replay, transcript_of
from scipy import stats
from seams import draw_from

from mechanisms.cli import main
from mechanisms.cli.preflight import asked_about
from mechanisms.linked.link import Link
from mechanisms.linked.pipeline import synthesize_linked
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.neighbours import NEIGHBOURS, relation
from mechanisms.privacy.noise import SeededNoise
from mechanisms.release.unfitted import Unfitted
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.synthesis.request import Request
from mechanisms.synthesis.unread import UnreadValues, check_values
from pgmkit import Categorical, FileFormat, Integer, Numeric, Schema
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset
from pgmkit.tables.files.record_files import encode_file
from pgmkit.tables.labelled import OpenCategorical

pytestmark = pytest.mark.usefixtures("short_fits")

SCHEMA = Schema(
    {
        "region": Categorical(("Zürich", "Genève", "Bern")),
        "wage": Numeric(0, 100, bins=4, missing=()),
        "age": Integer(0, 99, bins=5),
    }
)
BUDGETS = {"pure": Budget(1.5), "zCDP": Budget(1.5, 1e-6)}
DOMAIN = Domain({"a": 2, "b": 3, "c": 4})
CODED = Schema({n: Categorical(tuple(range(s - 1)), missing=()) for n, s in DOMAIN.sizes.items()})


def coded(rows: int, unread: int) -> Dataset:
    """Records of which so many rows are read in no column, and count as missing in all."""
    columns = {
        name: np.where(np.arange(rows) < unread, size - 1, 0) for name, size in DOMAIN.sizes.items()
    }
    return Dataset(DOMAIN, columns, unread=dict.fromkeys(DOMAIN, unread))


@pytest.mark.parametrize("kind", [pd.DataFrame, Dataset])
def test_public_values_that_cannot_be_read_are_told_exactly(kind: type) -> None:
    """They are no secret; unseen, all of them would count as the column's first value."""
    frame = pd.DataFrame({"region": ["Bern", "bern", "Bern", "BE"], "age": [1, 2, 3, 400]})
    public = frame if kind is pd.DataFrame else SCHEMA.restricted(frame).placed().encode(frame)
    with pytest.warns(
        UserWarning, match="public records: 2 of 4 values of region could not .* exact"
    ):
        Request(schema=SCHEMA, epsilon=1.0, delta=1e-9, mechanism="gem-pub", public=public)
    fine = frame.assign(region="Bern")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Request(schema=SCHEMA, epsilon=1.0, delta=1e-9, mechanism="gem-pub", public=fine)


class Found:
    """What a run of the check alone leaves, as `replay` looks at it."""

    def __init__(self, curator: Curator) -> None:
        self.ledger = curator.ledger
        self.reason = check_values(curator, CODED, True)

    def __repr__(self) -> str:
        return self.reason

    def save(self, path: Path) -> None:
        import zipfile

        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("reason", self.reason)


@pytest.mark.parametrize("kind", BUDGETS)
@pytest.mark.parametrize("max_rows", [1, 3])
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_the_counts_cost_what_is_charged(
    name: str, max_rows: int, kind: str, tmp_path: Path
) -> None:
    """Rows that are unread in every column, beside rows that are read: the worst neighbours."""
    neighbours = relation(name) if max_rows == 1 else relation(name, "person", max_rows)
    more = 0 if name == "replace-one" else max_rows
    one, other = coded(80, 10), coded(80 + more, 10 + max_rows)

    def job(data: Dataset) -> Found:
        return Found(Curator(data, BUDGETS[kind], neighbours=neighbours))

    share = replay(job, one, other, tmp_path, pure=BUDGETS[kind].pure)
    # Replaced units of several rows have a private number of rows, which stays here as it is.
    counts = 2 * len(DOMAIN)
    known = counts / (counts + 1) if name == "replace-one" and max_rows > 1 else 1.0
    assert share == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_no_exact_number_leaves(name: str, tmp_path: Path) -> None:
    one = transcript_of(
        lambda: Found(Curator(coded(80, 10), BUDGETS["zCDP"], neighbours=name)), tmp_path
    )
    rows = 80 if name == "replace-one" else 300
    other = transcript_of(
        lambda: Found(Curator(coded(rows, 70), BUDGETS["zCDP"], neighbours=name)),
        tmp_path,
        forced=one,
    )
    assert_same(one, other)


def frame(rows: int, garbled: int, rng: np.random.Generator) -> pd.DataFrame:
    """Records of which the first `garbled` were read in the wrong encoding and decimal sign."""
    region = rng.choice(["Zürich", "Genève", "Bern"], rows).astype(object)
    wage = rng.integers(0, 100, rows).astype(str).astype(object)
    region[:garbled], wage[:garbled] = "Z\ufffdrich", "12,50"
    return pd.DataFrame({"region": region, "wage": wage, "age": rng.integers(0, 99, rows)})


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_the_front_door_lets_nothing_but_noise_through(name: str, tmp_path: Path) -> None:
    data = frame(200, 60, np.random.default_rng(0))
    other = data.copy()
    other.loc[150] = ["Z\ufffdrich", "1,5", 7]
    if name == "add/remove":
        other = data.drop(index=3)

    def job(records: pd.DataFrame) -> Any:
        return synthesize(
            records,
            SCHEMA,
            epsilon=2.0,
            delta=1e-6,
            neighbours=name,
            mechanism="mst",
            report_unread=lambda found: None,
        )

    replay(job, data, other, tmp_path, pure=False)


def test_counts_are_those_of_the_records() -> None:
    """With hardly any noise; missing values without a place are unread, clipped ones are not."""
    data = frame(300, 60, np.random.default_rng(1))
    data.loc[100:109, "age"] = 5000
    data["age"] = data["age"].astype("Int64")
    data.loc[200:204, "age"] = None
    found: list[UnreadValues] = []
    synthesize(
        data,
        SCHEMA,
        epsilon=1e6,
        delta=1e-6,
        mechanism="independent",
        seed=0,
        report_unread=found.append,
    )
    assert {n: round(300 * s, 1) for n, s in found[0].shares.items()} == {
        "region": 60,
        "wage": 60,
        "age": 5,
    }
    assert set(found[0].many) == {"region", "wage"}


def test_noise_alone_hardly_ever_warns_and_garbage_does() -> None:
    """Shares of a tenth in 20 columns: one run in a million warns; two of 500 with 1.3e-7."""
    rng = np.random.default_rng(0)
    for pure in (False, True):
        alarms, misses = 0, 0
        for _ in range(500):
            noise = rng.laplace(0, 0.02 / 2**0.5, 20) if pure else rng.normal(0, 0.02, 20)
            shares = {str(i): 0.1 + x for i, x in enumerate(noise)}
            alarms += bool(UnreadValues(shares, 0.02, pure).many)
            shares["7"] += 0.4
            misses += "7" not in UnreadValues(shares, 0.02, pure).many
        assert alarms < 2 and misses == 0


@pytest.mark.parametrize("pure", [True, False])
def test_the_margin_is_that_of_one_false_alarm_in_a_million_runs(pure: bool) -> None:
    """Laplace noise exceeds it half as often, which leaves room for the noise of the rows."""
    law = stats.laplace(scale=0.02 / 2**0.5) if pure else stats.norm(scale=0.02)
    edge = 0.1 + law.isf(1e-6 / 5 / (2 if pure else 1))
    shares = dict(zip("abcde", edge + np.array([1e-6, -1e-6, 0.1, -0.2, 2e-6]), strict=True))
    assert UnreadValues(shares, 0.02, pure).many == ("c", "e", "a")


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("rows_public", [False, True])
def test_the_margin_of_missing_values_has_room_for_the_noise_of_the_rows(
    pure: bool, rows_public: bool
) -> None:
    """Both counts of the quotient are noisy, unless the number of rows is public. A column is named
    if noise may hide a part of it, not if it surely holds something, and never because of noise
    alone.
    """
    for noise in (0.002, 0.08):
        law = stats.laplace(scale=noise / 2**0.5) if pure else stats.norm(scale=noise)
        half = 2 if pure else 1
        both = 1.0 if rows_public else 2**0.5
        surely = 0.5 + both * law.isf(1e-6 / 4 / half)
        edge = max(surely, 1 - both * law.isf(1e-3 / half))
        assert (edge == surely) == (noise == 0.08)
        missing = dict(zip("abcde", edge + np.array([1e-6, -1e-6, 0.01, -0.1, 9]), strict=True))
        found = UnreadValues({"a": 0.0, "e": 0.99}, noise, pure, missing, rows_public)
        assert found.empty == ("c", "a") and found.many == ("e",)
        assert "99% of e could not be read" in str(found)
        assert "values of c, a are missing" in str(found)


def test_a_column_with_a_fifth_of_its_values_is_seldom_called_empty() -> None:
    """Counts and the number of rows have noise of a twenty-fifth of the rows each. The quotient
    crosses nine tenths with the probabilities 0.03 and 0.04; 0.06 in 2,000 draws has 1e-6.
    """
    rng = np.random.default_rng(0)
    named = {0.8: 0, 1.0: 0}
    for known in named:
        for count, rows in rng.normal(0, 0.04, (2000, 2)):
            missing = {"a": (known + count) / (1 + rows)}
            named[known] += bool(UnreadValues({"a": 0.0}, 0.04, False, missing).empty)
    assert named[0.8] < 120 and 2000 - named[1.0] < 120


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_shares_are_of_the_rows_and_their_noise_too(name: str) -> None:
    """The noise of a private number of rows enters by a tenth."""
    for rows, unread, of in ((80, 10, 80.0), (1, 1, 1.0)):
        curator = Curator(coded(rows, unread), BUDGETS["zCDP"], neighbours=name)
        draw_from(curator, Exactly(np.random.default_rng(0)))
        found: list[UnreadValues] = []
        check_values(curator, CODED, found.append)
        assert found[0].shares == found[0].missing == dict.fromkeys(DOMAIN, unread / of)
        counts = 2 * len(DOMAIN)
        one = counts if name == "replace-one" else (counts + 1) * (1 + 0.1**2)
        cost = 0.01 * curator.ledger.budget.total
        assert found[0].stddev == pytest.approx((one / (2 * cost)) ** 0.5 / of)
        assert not found[0].pure and found[0].rows_public == (name == "replace-one")


class Exactly(SeededNoise):
    """Noise that adds none."""

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        return counts


def test_python_warns_and_says_it() -> None:
    data = frame(3000, 2000, np.random.default_rng(2))
    with pytest.warns(UserWarning, match="of region, .* could not be read"):
        release = synthesize(
            data,
            SCHEMA,
            epsilon=2.0,
            delta=1e-6,
            mechanism="independent",
            seed=0,
            report_unread=True,
        )
    assert "could not be read" in release.reason


def test_coded_records_are_refused_before_a_charge() -> None:
    curator = Curator(
        Dataset(DOMAIN, {name: [0] for name in DOMAIN}), BUDGETS["zCDP"], neighbours="add/remove"
    )
    with pytest.raises(InvalidInput, match="encode_file"):
        curator.measure_unread(curator.remaining / 2)
    assert not curator.ledger.entries


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A file in Latin-1 with decimal commas, whose header line is plain, and its schema."""
    rng = np.random.default_rng(3)
    lines = ["region;wage;age"] + [
        f"{rng.choice(['Zürich', 'Genève', 'Bern'])};{rng.integers(0, 99)},5;{rng.integers(0, 99)}"
        for _ in range(4000)
    ]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n", encoding="latin-1")
    SCHEMA.save(tmp_path / "people.yaml")
    return tmp_path


def run(folder: Path, *options: str, stdin: str | None = None) -> Any:
    given = [str(folder / "people.csv"), "--schema", str(folder / "people.yaml")]
    out = ["--out", str(folder / "out.csv"), "--mechanism", "independent", "--seed", "0"]
    return CliRunner().invoke(main, ["synth", *given, *out, *options], input=stdin)


def test_a_garbled_file_stops_and_keeps_what_is_spent(files: Path) -> None:
    account = files / "account.jsonl"
    Ledger.create(account, Budget(3.0, 1e-8), neighbours="add/remove")
    ended = run(files, "--ledger", str(account))
    assert ended.exit_code == 2
    assert "encoding" in ended.stderr and "decimal" in ended.stderr and "--yes" in ended.stderr
    assert not (files / "out.csv").exists()
    assert len(Ledger.open(account).entries) == 2


def test_consent_goes_on(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(files, "--yes").exit_code == 0
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
    assert run(files, stdin="y\n").exit_code == 0
    assert run(files, stdin="n\n").exit_code == 2
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidInput, match="go on with --yes"):
        asked_about(SCHEMA, yes=False)(UnreadValues({"age": 0.5}, 0.01, pure=False))  # type: ignore


def test_a_file_that_is_read_as_it_is_written_says_so(files: Path) -> None:
    ended = run(files, "--encoding", "latin-1", "--decimal", ",")
    assert ended.exit_code == 0 and "no column shows" in ended.stdout


def test_files_know_what_could_not_be_read(files: Path) -> None:
    """Counted with Python's own reader."""
    lines = (files / "people.csv").read_text(encoding="latin-1").splitlines()[1:]
    wrong = sum(not line.startswith("Bern") for line in lines)
    found = encode_file(files / "people.csv", SCHEMA.placed())
    assert dict(found.unread or {}) == {"region": wrong, "wage": 4000, "age": 0}
    right = SCHEMA.of_file(FileFormat(encoding="latin-1", decimal=","))
    assert set((encode_file(files / "people.csv", right.placed()).unread or {}).values()) == {0}


def test_a_key_of_json_lines_with_another_name_is_noticed(tmp_path: Path) -> None:
    """The keys are private, so the column is missing in every record, which is not refused."""
    lines = "".join(f'{{"region": "Bern", "Wage": {i % 100}, "age": 7}}\n' for i in range(4000))
    (tmp_path / "people.jsonl").write_text(lines, encoding="utf-8")
    SCHEMA.save(tmp_path / "people.yaml")
    given = [str(tmp_path / "people.jsonl"), "--schema", str(tmp_path / "people.yaml")]
    out = ["--out", str(tmp_path / "out.csv"), "--mechanism", "independent", "--seed", "0"]
    ended = CliRunner().invoke(main, ["synth", *given, *out])
    assert ended.exit_code == 2 and not (tmp_path / "out.csv").exists()
    assert "nearly all values of wage are missing" in ended.stderr and "--yes" in ended.stderr
    assert CliRunner().invoke(main, ["synth", *given, *out, "--yes"]).exit_code == 0


def test_few_rows_are_said_to_tell_nothing() -> None:
    assert "too few rows to tell" in str(UnreadValues({"age": 0.0}, 0.2, pure=False))
    assert "no column shows" in str(UnreadValues({"age": 0.0}, 0.02, pure=False))


@pytest.mark.parametrize(
    ("name", "values"), [("region", ["Bern"] * 40), ("canton", ["Bern", None] * 20)]
)
def test_a_run_that_does_not_check_says_once_where_unread_values_would_count(
    name: str, values: list[Any]
) -> None:
    """Whatever the data hold; columns that keep such values apart are not named."""
    columns = {
        name: Categorical(("Zürich", "Bern")),
        "town": Categorical(("Zürich", "Bern"), other="else"),
        "age": Integer(0, 99, bins=5),
        "wage": Numeric(0, 100, bins=4, missing=()),
        "job": Integer(0, 9, outside="clip"),
    }
    frame = pd.DataFrame({name: values, "town": values, "age": 30, "wage": 1.0, "job": 1})
    options: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "mechanism": "independent"}
    with warnings.catch_warnings(action="error"):
        for _ in range(2):  # one that is raised is raised again
            with pytest.raises(UserWarning, match="count among others, unseen"):
                synthesize(frame, Schema(columns), **options)
    with pytest.warns(UserWarning, match="count among others, unseen") as caught:
        synthesize(frame, Schema(columns), **options)
    [said] = [each for each in caught if "unseen" in str(each.message)]
    assert f"({name} as 'Zürich', age as '0..19')" in str(said.message)
    assert said.filename == __file__
    for schema, more in (
        (Schema(columns), {}),
        (Schema(columns).placed(), {}),
        (Schema({**columns, "job": Integer(0, 9)}), {"report_unread": print}),
        (Schema({**columns, "job": Integer(0, 9)}), {"report_unread": True}),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            synthesize(frame, schema, **options, **more)
        assert not any("unseen" in str(each.message) for each in caught)
    assert str(UnreadValues({"age": 0.0}, 589.7, pure=False)).endswith("(noise above 100%)")


def test_warnings_point_to_the_line_that_calls() -> None:
    frame = pd.DataFrame({"a": ["x", "y", "?"] * 500, "u": 1, "id": range(1500)})
    columns = {"a": Categorical(("x", "y")), "u": Integer(0, 1)}
    schema, paid = Schema(columns), {"epsilon": 9.0, "delta": 1e-6, "seed": 0}
    home = Schema({"u": Integer(0, 1)}), Schema({"a": Categorical(("x", "y"))})
    link = Link("person", "home", "id", 1)
    rare = Schema({"a": OpenCategorical(), "u": Integer(0, 1)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        release = synthesize(frame, schema, report_unread=True, mechanism="independent", **paid)
        short = {"pretrain_steps": 1, "steps": 1}
        synthesize(frame, schema, public=frame, mechanism="gem-pub", settings=short, **paid)
        synthesize(frame.head(3), rare, mechanism="independent", **paid)
        schemas = dict(zip(("home", "person"), home, strict=True))
        synthesize_linked({"home": frame, "person": frame}, schemas, [link], **paid)
        wider = Schema({**columns, "w": Integer(0, 1)})
        unfitted = replace(release.release, model=Unfitted(wider.domain, None))
        replace(release, release=unfitted, schema=wider).estimated()
    said = [str(each.message) for each in caught]
    for part in ("% of a could", "public records", "no value of a", "unseen", "in no table"):
        assert any(part in each for each in said), (part, said)
    assert {each.filename for each in caught} == {__file__}, said
