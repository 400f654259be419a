"""Errors of questions known in advance: against error bars, explicit matrices, and the data."""

import itertools
import math
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chance import assert_mean
from click.testing import CliRunner
from scipy.stats import binom

from mechanisms import Workload, expected_errors, least_epsilon, synthesize
from mechanisms.cli import main
from mechanisms.matrix import matrix_pgm
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS, relation
from mechanisms.queries.query_sets import QuerySet, query_rows
from mechanisms.strategies.best import best_strategy, expected_variance
from mechanisms.strategies.marginals import MarginalsStrategy, marginals_strategy
from mechanisms.strategies.products import ProductsStrategy, products_strategy
from mechanisms.strategies.residuals import ResidualsStrategy
from mechanisms.synthesis.questions import question_workload
from mechanisms.synthesis.request import Request
from pgmkit import Categorical, Dataset, Integer, InvalidInput, Numeric, OpenCategorical, Schema
from pgmkit.domain import Domain
from pgmkit.errors import ModelTooLarge
from pgmkit.queries import FactoredQuery

SCHEMA = Schema(
    {
        "age": Integer(0, 19, missing=()),
        "sex": Categorical(("F", "M")),
        "job": Categorical(("cook", "smith", "clerk")),
        "pay": Numeric(0, 40, bins=8),
    }
)
QUESTIONS = ["cdf(age) | sex", "age in 5-year steps x job", "mean(pay) | sex", "count"]
RNG = np.random.default_rng(0)
DATA = Dataset(
    SCHEMA.domain, {n: RNG.integers(0, size, 3000) for n, size in SCHEMA.domain.sizes.items()}
)
MATRIX: dict[str, Any] = {"mechanism": "matrix", "settings": {"clip": False}}


@pytest.mark.usefixtures("planned_once")
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_stated_errors_are_those_of_the_answers(neighbours: str, delta: float) -> None:
    """Of thirty releases, by their distance from the data. Laplace noise of a scale of a few counts
    and more has nearly the variance of the continuous one, which is stated."""
    options: dict[str, Any] = {"epsilon": 0.5, "delta": delta, "neighbours": neighbours, **MATRIX}
    stated = expected_errors(SCHEMA, QUESTIONS, **options)
    by_hand = DATA.marginal(("sex", "age")).astype(float)[:, :20].cumsum(axis=1)
    steps = DATA.marginal(("age", "job")).astype(float)
    fives = np.stack([*(steps[i : i + 5].sum(0) for i in range(0, 20, 5)), steps[20]])
    squares: list[list[float]] = [[], []]
    for seed in range(30):
        release = synthesize(DATA, SCHEMA, queries=QUESTIONS, seed=seed, **options)
        for found, wanted, text, error in zip(
            squares, (by_hand, fives), QUESTIONS, stated, strict=False
        ):
            counts = release.ask(text, error_bars=False).columns["count"]
            away = (np.asarray(counts) - wanted.reshape(-1)) / error.stddev
            found.append(float((away**2).mean()))
    for found in squares:
        assert_mean(found, 1.0)


@pytest.mark.parametrize("neighbours", ["add/remove", "replace-one"])
def test_stated_errors_are_those_of_the_error_bars(neighbours: str) -> None:
    options: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "neighbours": neighbours}
    release = synthesize(DATA, SCHEMA, queries=QUESTIONS, seed=0, **options)
    assert release.mechanism == "matrix+pgm"
    for each in expected_errors(SCHEMA, QUESTIONS, **options):
        if each.kind == "mean":
            continue
        stderr = np.asarray(release.ask(each.question, error_bars=True).columns["stderr"])
        scale = stderr.max() / each.largest if each.largest else 1.0
        assert 1 - 1e-4 <= scale < 1.3  # wider where the noisy tables happen to disagree
        assert each.stddev * scale == pytest.approx(float(np.sqrt((stderr**2).mean())), rel=1e-4)
    assert len(release.sample(10, rng=0)) == 10


def test_each_objective_is_best_at_its_own() -> None:
    found = {
        goal: expected_errors(
            SCHEMA,
            QUESTIONS[:2],
            epsilon=1.0,
            delta=1e-6,
            mechanism="matrix",
            settings={"objective": goal},
        )
        for goal in ("sum", "mean", "largest")
    }
    means = {goal: sum(e.stddev**2 for e in found[goal]) for goal in found}
    largest = {goal: max(e.largest for e in found[goal]) for goal in found}
    counts = [2 * 21, 5 * 3]
    sums = {
        goal: sum(n * e.stddev**2 for n, e in zip(counts, found[goal], strict=True))
        for goal in found
    }
    for goal, values in {"sum": sums, "mean": means, "largest": largest}.items():
        # Up to what goes to the column that no question names.
        assert values[goal] <= min(values.values()) * 1.01


def on_data(domain: Domain, factors: dict[str, np.ndarray]) -> np.ndarray:
    parts = [factors.get(name, np.ones((1, size))) for name, size in domain.sizes.items()]
    return reduce(np.kron, parts, np.ones((1, 1)))


@pytest.mark.parametrize(("norm", "known"), [*itertools.product([1, 2], [False, True])])
def test_variances_of_marginals_and_products_are_those_of_the_matrices(
    norm: int, known: bool
) -> None:
    domain = Domain({"a": 3, "b": 2, "c": 4})
    sets = [
        QuerySet(("c", "a"), ("prefix", "identity")),
        QuerySet(("b", "c"), ("identity", np.array([[1.0, 0, 1, 0]])), 0.5),
        QuerySet(("b",), ("identity",)),
    ]
    workload = Workload.of(domain, sets)
    neighbours = relation("replace-one" if known else "add/remove")
    marginals = marginals_strategy(workload, norm, known)
    rows = [
        on_data(domain, {n: np.eye(domain.sizes[n]) for n in c}) * share ** (1 / norm)
        for c, share in marginals.shares.items()
    ]
    if known:
        rows.append(1e6 * np.ones((1, domain.size())))
    inverse = np.linalg.pinv(np.vstack(rows), rcond=1e-13)
    unit = 2.0 * neighbours.l1**2 if norm == 1 else neighbours.l2**2 / 2
    whole = 0.0
    for each in sets:
        factors = {n: query_rows(each.along(n), domain.sizes[n]) for n in each.clique}
        query = FactoredQuery(factors)
        stated = expected_variance(workload, marginals, query, neighbours, norm)
        ordered = [n for n in domain if n in factors]
        wanted = ((on_data(domain, factors) @ inverse) ** 2).sum(axis=1)
        shape = [len(factors[n]) for n in ordered]
        wanted = wanted.reshape(shape).transpose([ordered.index(n) for n in each.clique])
        assert np.allclose(stated.reshape(wanted.shape), unit * wanted, rtol=1e-5)
        whole += each.weight * wanted.sum()
    assert whole == pytest.approx(marginals.expected_error, rel=1e-5)
    products = products_strategy(workload)
    whole = 0.0
    for each in sets:
        factors = {n: query_rows(each.along(n), domain.sizes[n]) for n in each.clique}
        stated = expected_variance(workload, products, FactoredQuery(factors), neighbours, norm)
        strategy = reduce(np.kron, [products.rows[n] for n in each.clique])
        asked = reduce(np.kron, factors.values())
        wanted = ((asked @ np.linalg.pinv(strategy)) ** 2).sum(axis=1)
        smallest = min((c for c in products.shares if {*each.clique} <= {*c}), key=domain.size)
        if smallest == each.clique:
            wanted /= products.shares[each.clique] ** 2
            assert np.allclose(stated.reshape(-1), unit * wanted)
            whole += each.weight * wanted.sum()
    assert whole == pytest.approx(products.expected_error)


def test_pure_budgets_take_the_best_of_all_strategies() -> None:
    domain = Domain({"a": 64, "b": 2})
    kinds = set()
    for sets in (
        [QuerySet(("a",), ("range",))],
        [QuerySet(("a", "b"), ("identity", "identity")), QuerySet(("b",), ("identity",))],
    ):
        workload = Workload.of(domain, sets)
        best = best_strategy(workload, relation("add/remove"), 1, total_known=False)
        kinds.add(type(best))
        assert isinstance(best, ResidualsStrategy | MarginalsStrategy | ProductsStrategy)
    assert len(kinds) == 2


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("report", [False, True])
def test_the_least_epsilon_is_the_least(delta: float, report: bool) -> None:
    questions = QUESTIONS[:2]
    options: dict[str, Any] = {"delta": delta, "report_unread": report}
    epsilon = least_epsilon(SCHEMA, questions, 60, **options)
    goal = {"mechanism": "matrix", "settings": {"objective": "largest"}}
    reach = 1.959964 if delta else math.log(20) / math.sqrt(2)

    def worst(epsilon: float) -> float:
        kinds = ["zcdp", "gaussian"] if delta else ["zcdp"]
        return reach * min(
            max(
                each.largest
                for each in expected_errors(
                    SCHEMA, questions, epsilon=epsilon, accounting=kind, **goal, **options
                )
            )
            for kind in kinds
        )

    assert worst(epsilon) <= 60 * (1 + 1e-4) < worst(epsilon / 1.01)
    if report:  # `DATA` are codes, all of which could be read
        return
    release = synthesize(DATA, SCHEMA, queries=questions, within=60, seed=0, **options)
    assert release.ledger is not None
    assert release.ledger.budget.epsilon == pytest.approx(epsilon)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("within", [0.9, 2.9, 5.9])
def test_noise_of_whole_numbers_keeps_within_a_fraction(delta: float, within: float) -> None:
    """Noise of a standard deviation for which continuous noise is within 2.9 with a probability of
    95% was within it with one of 91.5% (Gaussian) or 93.4% (Laplace) where it is whole numbers.
    """
    schema = Schema({"age": Integer(0, 39)})
    asked: dict[str, Any] = {"delta": delta, "neighbours": "replace-one", "accounting": "zcdp"}
    epsilon = least_epsilon(schema, ["age"], within, **asked)
    (found,) = expected_errors(schema, ["age"], epsilon=epsilon, **asked)
    numbers = np.abs(np.arange(-99, 100) / found.largest)
    mass = np.exp(-numbers * 2**0.5 if delta == 0 else -(numbers**2) / 2)
    assert mass[numbers * found.largest <= within].sum() >= 0.95 * mass.sum()


@pytest.mark.usefixtures("planned_once")
def test_answers_keep_within_what_was_asked() -> None:
    """95% of answers each: of twenty releases, the share of answers within. The epsilon is looked
    for once: it does not depend on the records."""
    within, asked = [], {"within": 40.0}
    for seed in range(20):
        release = synthesize(
            DATA, SCHEMA, queries=["cdf(age) | sex"], delta=1e-6, seed=seed, **asked, **MATRIX
        )
        asked = {"epsilon": release.ledger.budget.epsilon}
        found = np.asarray(release.ask("cdf(age) | sex", error_bars=False).columns["count"])
        truth = DATA.marginal(("sex", "age")).astype(float)[:, :20].cumsum(axis=1).reshape(-1)
        within.append(float((np.abs(found - truth) <= 40).mean()))
    assert np.mean(within) >= 0.88


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queries": "age"}, "queries must be a sequence of texts"),
        ({"queries": []}, "queries must be a list of questions"),
        ({"queries": [3]}, "queries must be a sequence of texts"),
        ({"queries": {"age", "sex"}}, "queries must be a sequence of texts"),
        ({"queries": np.array([["age", "sex"]])}, "a question must be a str, got ndarray"),
        ({"queries": ["cdf(wage)"]}, "'cdf(wage)': there is no column 'wage'"),
        ({"queries": ["age"], "workload": 2}, "queries are the workload"),
        ({"queries": ["age"], "target": "sex"}, "queries are the workload"),
        ({"queries": ["age"], "within": 5.0}, "either epsilon or within"),
        ({"queries": ["age"], "epsilon": None}, "either epsilon or within"),
        ({"within": 5.0, "epsilon": None}, "within needs queries"),
        ({"queries": ["age"], "within": 0, "epsilon": None}, "above 0"),
        ({"queries": ["age"], "within": 1e-100, "epsilon": None}, "allow larger errors"),
        ({"queries": ["age"], "within": 1e100, "epsilon": None}, "allow smaller errors"),
        ({"queries": ["sum(pay)"], "within": 5, "epsilon": None}, "not answered in records"),
        ({"queries": ["sum(age) | age = 0"]}, "every value that is left is 0"),
        (
            {"queries": ["age"], "within": 5, "epsilon": None, "mechanism": "mst"},
            "within needs queries",
        ),
    ],
)
def test_wrong_questions_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        synthesize(DATA, SCHEMA, **{"epsilon": 1.0, "delta": 1e-6, **options})
    assert said in str(refused.value)


def test_open_columns_can_be_asked_for_but_not_conditions_on_them() -> None:
    schema = Schema({"town": OpenCategorical(), "sex": Categorical(("F", "M"))})
    with pytest.raises(InvalidInput, match="still to be found"):
        expected_errors(schema, ["sex | town = Rome"], epsilon=1.0, delta=1e-6)
    with pytest.raises(InvalidInput, match="known beforehand without open columns"):
        expected_errors(schema, ["town | sex"], epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize("mechanism", ["aim", "mst", "independent", "mwem+pgm"])
def test_other_mechanisms_take_questions_too(mechanism: str) -> None:
    release = synthesize(
        DATA, SCHEMA, epsilon=1.0, delta=1e-6, queries=QUESTIONS, mechanism=mechanism, seed=0
    )
    assert release.ask(QUESTIONS[0]).columns["share"][-1] == pytest.approx(1.0)


def test_the_command_line_plans_and_spends(tmp_path: Path) -> None:
    SCHEMA.save(tmp_path / "people.json")
    (tmp_path / "asked.txt").write_text("# of each sex\ncdf(age) | sex\n", encoding="utf-8")
    asked = ["--schema", str(tmp_path / "people.json"), "--queries", str(tmp_path / "asked.txt")]
    asked += ["--delta", "1e-6"]
    planned = CliRunner().invoke(main, ["plan", *asked, "--within", "1%", "--rows", "3000"])
    assert planned.exit_code == 0, planned.output
    assert "every answer is within 30 records" in planned.output
    (line,) = (x for x in planned.output.splitlines() if x.startswith("  cdf(age) | sex: +-"))
    assert float(line.split("+-")[1].split()[0]) <= 30 / 1.95
    drawn = synthesize(DATA, SCHEMA, epsilon=9.0, delta=1e-6, mechanism="independent", seed=0)
    drawn.sample(3000, rng=0, like="pandas").to_csv(tmp_path / "people.csv", index=False)
    run = ["synth", str(tmp_path / "people.csv"), *asked, "--within", "1% of 3000", "--seed", "1"]
    made = CliRunner().invoke(main, [*run, "--out", str(tmp_path / "out.csv")])
    assert made.exit_code == 0, made.output
    assert "planned: cdf(age) | sex: +-" in made.stderr and "matrix+pgm" in made.stdout


@pytest.mark.parametrize("within", ["", "..5", "1.2.3", "-5", "nan", "1e3", "5%%", "1% of", "٣"])
def test_odd_texts_of_within_are_refused(tmp_path: Path, within: str) -> None:
    SCHEMA.save(tmp_path / "people.json")
    (tmp_path / "asked.txt").write_text("age\n", encoding="utf-8")
    asked = ["--schema", str(tmp_path / "people.json"), "--queries", str(tmp_path / "asked.txt")]
    said = CliRunner().invoke(main, ["plan", *asked, "--delta", "1e-6", "--within", within])
    assert said.exit_code == 2 and "must be a number of records" in said.stderr


def test_a_file_of_questions_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    SCHEMA.save(tmp_path / "people.json")
    (tmp_path / "asked.txt").write_text("sex\n", encoding="utf-8-sig")
    asked = ["--schema", str(tmp_path / "people.json"), "--queries", str(tmp_path / "asked.txt")]
    options = ["--delta", "1e-6", "--within", "50", "--rows", "100"]
    planned = CliRunner().invoke(main, ["plan", *asked, *options])
    assert planned.exit_code == 0, planned.output


def test_mechanisms_that_answer_cells_take_the_tables_of_the_questions_alike() -> None:
    for mechanism, alike in (("gem", True), ("mixture", True), ("aim", False), ("auto", False)):
        request = Request(
            schema=SCHEMA, epsilon=1.0, delta=1e-6, queries=["cdf(age) | sex"], mechanism=mechanism
        )
        assert request.likely.plain == alike
        assert (len(set(request.likely.weights)) == 1) == alike
    release = synthesize(
        DATA, SCHEMA, epsilon=1.0, delta=1e-6, queries=["job x sex"], mechanism="dual-query", seed=0
    )
    assert len(release.sample(5, rng=0)) == 5


@pytest.mark.usefixtures("planned_once")
@pytest.mark.parametrize(
    ("text", "column"),
    [("median(age) | sex", "age"), ("quantile(pay, 0.9) | sex", "pay"), ("mean(pay) | sex", "pay")],
)
def test_intervals_of_averages_cover_the_truth(text: str, column: str) -> None:
    """In 80 releases, two groups each, against the records' own averages. Intervals of quantiles
    end where bins end, so they cover 95% at least; those of means 95%."""
    table = DATA.marginal(("sex", column)).astype(float)
    own = SCHEMA.columns[column]
    assert own.midpoints is not None
    present = ~np.isnan(own.midpoints)
    counts, middles = table[:, present], own.midpoints[present]
    covered = []
    for seed in range(80):
        release = synthesize(
            DATA, SCHEMA, epsilon=0.5, delta=1e-6, queries=[text], seed=seed, **MATRIX
        )
        reply = release.ask(text, error_bars=True).columns
        low, high = np.asarray(reply["low"]), np.asarray(reply["high"])
        if text.startswith("mean"):
            truth = counts @ middles / counts.sum(axis=1)
            covered.append((low <= truth) & (truth <= high))
            continue
        level = 0.9 if "0.9" in text else 0.5
        place = (counts.cumsum(axis=1) >= level * counts.sum(axis=1)[:, None]).argmax(axis=1)
        covered.append((low <= middles[place]) & (middles[place] <= high))
    found = np.array(covered).reshape(-1).astype(float)
    # Of 160 intervals that cover in 95% of cases, fewer than these once in a million times.
    assert found.sum() >= binom.ppf(1e-6, found.size, 0.95)


def test_a_column_of_many_codes_does_not_cost_the_noise_of_as_many_cells() -> None:
    """The errors of its cumulative counts grow with the logarithm of the codes: those of the last
    of 120 cells, added up, with the root, by a factor of 3.9."""
    errors = []
    for codes in (8, 120):
        schema = Schema({"pay": Integer(0, codes - 1)})
        (found,) = expected_errors(schema, ["cdf(pay)"], epsilon=1.0, delta=1e-6)
        errors.append(found.largest)
    assert errors[1] < 2 * errors[0]


def test_a_public_total_has_no_error_and_one_number_is_said() -> None:
    (found,) = expected_errors(SCHEMA, ["count"], epsilon=1.0, delta=1e-6, neighbours="replace-one")
    assert str(found) == "count: +-0 records"


def test_a_table_that_memory_does_not_hold_costs_nothing() -> None:
    schema = Schema({name: Integer(0, 299) for name in "abcd"})
    curator = Curator(
        Dataset(schema.domain, {name: np.arange(300) for name in "abcd"}),
        Budget(1.0, 1e-6),
        neighbours="add/remove",
    )
    with pytest.raises(ModelTooLarge, match="leave out attributes"):
        matrix_pgm(curator, question_workload(schema, ["a x b x c x d"]))
    assert curator.ledger.spent == 0


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"within": 0.01}, "records need epsilon = .*, which protects hardly anyone"),
        (
            {"epsilon": 1000.0},
            "epsilon = 1000 protects hardly anyone; 0.1 to 10 are usual, and .* as long",
        ),
    ],
)
def test_an_epsilon_that_protects_hardly_anyone_is_warned_of(
    budget: dict[str, float], said: str
) -> None:
    with pytest.warns(UserWarning, match=said):
        synthesize(DATA, SCHEMA, queries=["age"], delta=1e-6, seed=0, **budget, **MATRIX)


@pytest.mark.parametrize("kind", [pd.Series, pd.Index, np.array, tuple])
def test_questions_may_be_in_any_sequence(kind: Any) -> None:
    asked, options = ["cdf(age) | sex", "job"], {"epsilon": 1.0, "delta": 1e-9}
    assert expected_errors(SCHEMA, kind(asked), **options) == expected_errors(
        SCHEMA, asked, **options
    )
    with pytest.raises(InvalidInput, match="queries must be a list of questions .* got none"):
        expected_errors(SCHEMA, kind([]), **options)
