"""The report: what it says, and that a browser shows it without script, error or network."""

import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from scipy.stats import contingency

from mechanisms.datasets.census import census
from mechanisms.families.tables import TablesModel
from mechanisms.release import report_against
from mechanisms.release.evaluation import marginal_errors, some_cliques, train_and_test
from mechanisms.release.report import Evaluation, html
from mechanisms.release.tabular import TableRelease
from mechanisms.synthesis.pipeline import synthesize
from pgmkit import Categorical, Dataset, Integer, InvalidInput, Schema, __version__

NAMES = ["age", "sex", "work", "income"]
EVERYBODY = census(4000).project(NAMES)
DATA, OTHERS = (
    Dataset(EVERYBODY.domain, {name: codes[part] for name, codes in EVERYBODY.columns.items()})
    for part in (slice(0, 3000), slice(3000, 4000))
)
SCHEMA = Schema({name: Integer(0, size - 1) for name, size in DATA.domain.sizes.items()})


def release(**options: Any) -> TableRelease:
    given = {"epsilon": 3.0, "delta": 1e-6, "mechanism": "mst", "seed": 0}
    return synthesize(DATA, SCHEMA, **{**given, **options})


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    made = release()
    return {
        "public": html(made),
        "private": html(made, Evaluation(DATA, target="income", test=OTHERS)),
        "tables": html(release(mechanism="mixture", settings={"steps": 20})),
    }


def words(page: str) -> str:
    page = re.sub(r"<(style|script)>.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_it_says_what_was_released_and_spent(pages: dict[str, str]) -> None:
    text = words(pages["public"])
    for part in [
        "epsilon = 3, delta = 1e-06, neighbours: add/remove",
        "INSECURE",
        "exponential mechanism",
        "Least certain tables",
        "age, sex, work, income",
    ]:
        assert part in text
    assert "NOT PRIVATE" not in text and "Against" not in text
    assert "whiskers" in text and "whiskers" in words(pages["tables"])
    assert pages["public"].count("<figure>") == 4


def test_a_saved_release_has_the_same_page_under_a_later_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of a file says what the run said, with noisy figures that were paid for, and the
    version that made the release; only the page's own line has the version that reads it.
    """
    frame = pyarrow.table({"who": [0, 0, 1, 2], "sex": ["F", "M", "M", "F"]})
    made = synthesize(
        frame,
        Schema({"sex": Categorical(("F", "M"))}),
        epsilon=3.0,
        delta=1e-6,
        mechanism="independent",
        unit="who",
        max_rows=1,
        report_dropped=True,
        report_unread=True,
    )
    assert "left out" in made.reason and "could be read" in made.reason
    made.save(tmp_path / "r.pgm")
    for module in ("record", "page"):
        monkeypatch.setattr(f"mechanisms.release.{module}.__version__", "9.9")
    read = TableRelease.load(tmp_path / "r.pgm")
    assert (read.reason, read.made_by) == (made.reason, __version__)
    assert html(read) == html(made)
    text = words(html(read))
    assert "by pgmkit 9.9" in text and f"independent of pgmkit {__version__} (" in text
    assert text.count("9.9") == 1


def test_the_number_of_records_is_public_or_estimated_as_the_relation_says() -> None:
    said = {}
    for relation in ("add/remove", "replace-one"):
        made = synthesize(
            DATA, SCHEMA, epsilon=1.0, delta=1e-6, mechanism="independent", neighbours=relation
        )
        said[relation] = words(html(made))
        assert said[relation].count("rho is mu^2 / 2 of Gaussian differential privacy") == 2
        assert "promise epsilon = 1, delta = 1e-06" in said[relation]
    assert "records (estimated)" in said["add/remove"]
    assert "records (public) 3,000" in said["replace-one"]
    public = "relation replace-one, which leaves the number of rows public, accounted for by"
    assert public in said["replace-one"] and "rows public" not in said["add/remove"]


def test_a_seeded_release_has_no_promise(pages: dict[str, str]) -> None:
    assert "promise none; the ledger says epsilon = 3" in words(pages["public"])
    assert "rho is mu^2" not in words(pages["public"])  # zCDP


def test_against_the_data_it_is_marked_and_right(pages: dict[str, str]) -> None:
    text = words(pages["private"])
    assert "NOT PRIVATE" in text and "predicting income" in text
    errors = marginal_errors(release().model, DATA, some_cliques(DATA.domain, 2))
    worst = max(errors, key=errors.__getitem__)
    assert f"{' x '.join(worst)} {errors[worst]:.4f}" in text
    assert f"2-way 6 {np.mean(list(errors.values())):.4f} {errors[worst]:.4f}" in text


def test_a_table_in_which_noise_hides_all_counts_has_an_error() -> None:
    clique = (DATA.domain.attributes[0],)
    hidden = TablesModel(DATA.domain, {clique: np.zeros(DATA.domain.shape(clique))}, 3.0)
    assert marginal_errors(hidden, DATA, [clique]) == {clique: pytest.approx(0.5)}


def test_against_the_data_it_has_what_users_of_other_tools_know(pages: dict[str, str]) -> None:
    text = words(pages["private"])
    for part in [
        "of 1000, over 4 marginals of 3 columns",
        "pMSE",
        "least similar pairs",
        "slope, synthetic",
        "bins count as their middles, in the real records too",
        "of the synthetic records equal",
        "95% interval",
        "Prediction",
    ]:
        assert part in text, part
    alone = words(html(release(), Evaluation(DATA)))
    assert "Not estimated: it needs 4 or more records" in alone and "predicting" not in alone


def test_without_scikit_learn_its_sections_say_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_against, "find_spec", lambda _: None)
    found = report_against.sections(release(), Evaluation(DATA, target="income"))
    for section in ("propensity", "prediction"):
        assert "Left out: it needs scikit-learn (pip install" in "".join(found[section])


def test_many_charges_are_summed_by_step_and_folded_away() -> None:
    made = release(mechanism="mwem+pgm", settings={"rounds": 30})
    page = html(made)
    assert len(made.ledger.entries) > 60
    folded = page.index("<details>")
    summary = page[page.index("The budget") : folded]
    assert summary.count("<tr>") <= 5 and "round: select" in words(summary)
    assert f"All {len(made.ledger.entries)} charges" in page
    assert unescape(page[folded : page.index("</details>")]).endswith(f"<pre>{made.ledger}</pre>")


def test_many_columns_are_compared_in_bounded_time_and_it_is_said() -> None:
    rng = np.random.default_rng(0)
    schema = Schema({f"column {i}": Integer(0, 3) for i in range(101)})
    data = Dataset(schema.domain, {name: rng.integers(0, 4, 100) for name in schema.columns})
    made = synthesize(data, schema, epsilon=5.0, delta=1e-6, mechanism="independent", seed=0)
    page = html(made, Evaluation(data))
    assert "3-way: 300 of 166,650" in page and "too many columns" in page
    assert page.count("<details class='column'") == page.count("<figure>") == 101
    assert re.findall(r"data-name='(.+?)'", page) == list(schema.columns)


def test_it_begins_with_the_verdict_and_the_names_of_what_it_is_about() -> None:
    made = release()
    page = html(made, name="people.csv", schema_file="people.yaml", target="income")
    text = unescape(words(page))
    assert text.index("Release of mst: people.csv") < text.index("schema people.yaml")
    for sentence in made.verdict.sentences:
        assert sentence in text and text.index(sentence) < text.index("What was released")
    assert "No privacy is promised: INSECURE" in text and "-differential privacy" not in text
    real = words(html(release(seed=None)))
    assert "(3, 1e-06)-differential privacy" in real and "No privacy" not in real
    assert '"Winning the NIST contest" (2021).' in text
    assert re.findall(r"data-name='(.+?)'", page) == NAMES
    with pytest.raises(InvalidInput, match="no column 'wages'"):
        html(made, target="wages")


def test_relations_are_those_of_the_model() -> None:
    """A square for each pair, framed where it was measured; V as scipy has it."""
    made = release()
    page = html(made, target="income")
    shown = dict(re.findall(r"<td>(\w+)</td><td[^>]*>(0\.\d\d)</td></tr>", page))
    for name in NAMES[:3]:
        table = np.rint(1e6 * made.model.marginal((name, "income"))).astype(np.int64)
        v = contingency.association(table, method="cramer")
        assert float(shown[name]) == pytest.approx(v, abs=0.0051)
    framed = re.findall(r"class='heat joined'.*?<title>(.*?):", page)
    kept = {f"{b} with {a}" for a, b in made.verdict.kept}
    assert set(framed) == kept and page.count("class='heat") == 6


def test_relations_that_noise_may_explain_are_white() -> None:
    rng = np.random.default_rng(0)
    schema = Schema({name: Integer(0, 9) for name in "abc"})
    frame = {name: rng.integers(0, 10, 300) for name in "ab"}
    data = schema.coded({**frame, "c": frame["a"]})
    made = synthesize(data, schema, epsilon=5, delta=1e-6, mechanism="mst", seed=0)
    assert made.verdict.hidden == tuple(p for p in made.verdict.kept if p != ("a", "c")) != ()
    white = set(re.findall(r"class='heat joined'[^<]*<title>([^<]*): 0.00<", html(made)))
    assert white == {f"{b} with {a}" for a, b in made.verdict.hidden}


def test_columns_that_are_unrelated_have_no_pictures_of_relations() -> None:
    page = html(release(mechanism="independent"))
    assert "unrelated to each other.</p>" in page
    assert "class='node'" not in page and "class='heat" not in page


def test_a_page_of_single_columns_says_nowhere_that_pairs_were_measured() -> None:
    """Its reason and its methods section said so, whatever the noise had hidden."""
    few = Dataset(DATA.domain, {name: codes[:60] for name, codes in DATA.columns.items()})
    made = synthesize(few, SCHEMA, epsilon=0.1, delta=1e-6, seed=0)
    assert made.mechanism == "mixture" and all(len(m.clique) == 1 for m in made.measurements)
    text = words(html(made))
    assert text.count("unless noise would hide them all") == 1
    assert text.count("of rows fitted, perhaps blended with a graphical model).") == 1


def test_names_cannot_inject_markup() -> None:
    schema = Schema({"<b>": Integer(0, 1), "a&b": Integer(0, 1)})
    data = Dataset(schema.domain, {"<b>": [0, 1] * 50, "a&b": [0, 0, 1, 1] * 25})
    page = html(synthesize(data, schema, epsilon=1.0, delta=1e-6, mechanism="mst", seed=0))
    assert "<b>" not in page and "&lt;b&gt;" in page and "a&amp;b" in page


def test_scores_are_those_of_the_records() -> None:
    scores = train_and_test(DATA, DATA, DATA, "income")
    assert scores.synthetic == scores.real and scores.ratio == 1.0
    noise = np.random.default_rng(0)
    shuffled = Dataset(
        DATA.domain, {name: noise.permutation(codes) for name, codes in DATA.columns.items()}
    )
    assert train_and_test(shuffled, DATA, DATA, "income").ratio < 0.9
    with pytest.raises(InvalidInput, match="no column"):
        train_and_test(DATA, DATA, DATA, "wages")


def test_few_private_records_that_a_classifier_never_gets_right_are_compared() -> None:
    """Of two records one is for training and the other, of another income, is for testing."""
    two = Dataset(DATA.domain, {name: np.array([0, 1]) for name in NAMES})
    page = html(release(), Evaluation(two, target="income"))
    assert re.search(r"trained on real records</td><td[^>]*>0.000</td>.*>inf</td>", page)
    with pytest.raises(InvalidInput, match="needs 2 or more, got 1; leave it out"):
        Evaluation(Dataset(DATA.domain, {name: np.array([0]) for name in NAMES}))
    with pytest.raises(InvalidInput, match="test records are the private records themselves"):
        Evaluation(two, test=Dataset(two.domain, two.columns))


@pytest.mark.parametrize("kind", ["public", "private", "tables"])
def test_a_browser_shows_it_offline(pages: dict[str, str], kind: str, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        pytest.skip("no Chromium on this machine")
    path = tmp_path / "report.html"
    path.write_text(pages[kind], encoding="utf-8")
    troubles: list[str] = []
    asked: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        picture = page.screenshot(full_page=True)
        figures = page.locator("figure svg rect").count()
        inside = "[...document.querySelectorAll('html, table')]"
        fits = f"{inside}.every(each => each.scrollWidth <= each.clientWidth)"
        for width in (400, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(fits), width
        page.fill("#find", "INC")
        found = [c.get_attribute("data-name") for c in page.locator("details.column:visible").all()]
        browser.close()
    assert not troubles and found == ["income"]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert figures == sum(min(size, 24) for size in DATA.domain.sizes.values())
    assert len(picture) > 20_000


@pytest.mark.parametrize("mechanism", ["matrix", "gaussian"])
def test_separate_tables_are_compared_where_they_have_answers(mechanism: str) -> None:
    made = release(mechanism=mechanism)
    said = words(html(made, Evaluation(DATA)))
    assert re.search(r"1-way 4 0\.\d+ 0\.\d+ 2-way 6 0\.\d+", said) and "3-way" not in said
    worst = max(marginal_errors(made.model, DATA, some_cliques(DATA.domain, 2)).values())
    assert f"{worst:.4f}" in said
    some = release(mechanism=mechanism, workload=[("age", "sex")])
    assert "2-way 1 " in words(html(some, Evaluation(DATA)))
    for asked in ({"target": "income"}, {"test": OTHERS}):
        with pytest.raises(InvalidInput, match="records cannot be drawn from separate tables"):
            html(made, Evaluation(DATA, **asked))
