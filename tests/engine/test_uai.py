"""UAI, BIF and XMLBIF files: what is written is read back; what is wrong is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_factor_graph import random_graph, sprinkler

from pgmkit import Domain, FactorGraph, InvalidInput, uai

# The example of the competition's description of the format.
EXAMPLE = """MARKOV
3
2 2 3
3
1 0
2 0 1
2 1 2

2
 0.436 0.564

4
 0.128 0.872
 0.920 0.080

6
 0.210 0.333 0.457
 0.811 0.000 0.189
"""


def test_the_published_example(tmp_path: Path) -> None:
    (tmp_path / "m.uai").write_text(EXAMPLE)
    graph = uai.read_model(tmp_path / "m.uai")
    joint = np.einsum("a,ab,bc->abc", *(table for _, table in graph.tables))
    found = graph.posterior().marginal(["x0", "x1", "x2"])
    np.testing.assert_allclose(found, joint / joint.sum())
    (tmp_path / "m.evid").write_text("1 1 0")
    assert uai.read_evidence(tmp_path / "m.evid", graph) == {"x1": 0}
    (tmp_path / "m.evid").write_text("1\n2 0 1 2 2\n")
    assert uai.read_evidence(tmp_path / "m.evid", graph) == {"x0": 1, "x2": 2}


def test_files_of_pyagrum_are_refused(tmp_path: Path) -> None:
    """It writes comments, and tables whose first parent changes fastest."""
    (tmp_path / "m.uai").write_text("BAYES\n1\n2\n1\n1 0   # a\n\n2\n  0.3 0.7\n")
    with pytest.raises(InvalidInput, match="m.uai' is not a UAI file: it holds a comment"):
        uai.read_model(tmp_path / "m.uai")


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_is_read_back(seed: int, tmp_path: Path) -> None:
    graph, _ = random_graph(seed)
    uai.write_model(graph, tmp_path / "m.uai")
    again = uai.read_model(tmp_path / "m.uai")
    assert (again.children is None) == (graph.children is None)
    assert again.domain.shape() == graph.domain.shape()
    if graph.children is None and not all(t.any() for _, t in graph.tables):
        return
    assert again.log_partition == pytest.approx(graph.log_partition, abs=1e-12)
    ours, theirs = graph.posterior().marginals(), again.posterior().marginals()
    for one, other in zip(ours.values(), theirs.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-15)


def test_results(tmp_path: Path) -> None:
    marginals = [np.array([0.25, 0.75]), np.array([1.0])]
    uai.write_marginals(marginals, tmp_path / "MAR")
    for one, other in zip(uai.read_marginals(tmp_path / "MAR"), marginals, strict=True):
        assert np.array_equal(one, other)
    uai.write_map([1, 0, 10**17], tmp_path / "MAP")
    assert uai.read_map(tmp_path / "MAP") == [1, 0, 10**17]
    uai.write_probability(-12.5, tmp_path / "PR")
    assert uai.read_probability(tmp_path / "PR") == pytest.approx(-12.5)
    graph = sprinkler()
    uai.write_evidence(graph, {"wet": 1}, tmp_path / "evid")
    assert uai.read_evidence(tmp_path / "evid", graph) == {"wet": "wet"}


def test_evidence_on_states_that_are_numbers_is_read_back(tmp_path: Path) -> None:
    table, states = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), {"a": (1, 2, 3)}
    graph = FactorGraph(Domain({"a": 3, "b": 2}), [(("a", "b"), table)], states=states)
    for code, state in enumerate(states["a"]):
        uai.write_evidence(graph, {"a": state, "b": 1}, tmp_path / "evid")
        found = uai.read_evidence(tmp_path / "evid", graph)
        assert found == {"a": state, "b": 1}
        assert graph.posterior(found).log_partition == pytest.approx(np.log(table[code, 1]))


@pytest.mark.parametrize("wrong", [1.7, -1.0, np.nan, np.inf])
def test_codes_of_a_result_are_whole_numbers(wrong: float, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"codes must be whole .* at least 0, got {wrong};"):
        uai.write_map(np.array([0.0, wrong]), tmp_path / "MAP")
    assert not (tmp_path / "MAP").exists()


def test_every_file_cut_short_is_refused(tmp_path: Path) -> None:
    words = EXAMPLE.split()
    for length in range(len(words)):
        (tmp_path / "m.uai").write_text(" ".join(words[:length]))
        with pytest.raises(InvalidInput, match="cut short"):
            uai.read_model(tmp_path / "m.uai")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("MARKOV", "GRAPH", "begins with"),
        ("MARKOV\n3", "MARKOV\n-3", "must be an integer of at least 1$"),
        ("2 2 3", "2 two 3", "must be an integer"),
        ("2 1 2", "2 1 3", "below 3"),
        ("2 1 2", "2 1 1", "twice"),
        ("\n4\n", "\n5\n", "cells"),
        ("0.872", "much", "holds a word"),
        ("0.872", "nan", "got nan"),
        ("0.872", "-0.872", "table 1 must be numbers .* at least 0, got -0.872"),
        ("0.189\n", "0.189 0.5", "left over"),
        (EXAMPLE, f"MARKOV 70 {70 * '1 '} 1 70 {' '.join(map(str, range(70)))} 1 1.0", "below 65"),
    ],
)
def test_bad_models(old: str, new: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "m.uai").write_text(EXAMPLE.replace(old, new, 1))
    with pytest.raises(InvalidInput, match=rf"^'[^']*m\.uai'.*{said}"):
        uai.read_model(tmp_path / "m.uai")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"MARKOV", b"\xef\xbb\xbfMARKOV", "begins with '.*; such a UAI file begins with BAYES or"),
        (b"2 2 3", b"2 \xb2 3", "word 4: the size of variable 1 is .*xb2'; it must be an integer"),
        (b"0.872", b"0,872\xa0", "table 1 holds a word: .*xa0'"),
    ],
)
def test_bytes_that_are_no_text_are_named(
    old: bytes, new: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / "m.uai").write_bytes(EXAMPLE.encode().replace(old, new, 1))
    with pytest.raises(InvalidInput, match=rf"^'[^']*m\.uai'.*{said}"):
        uai.read_model(tmp_path / "m.uai")


def test_results_are_numbers(tmp_path: Path) -> None:
    for wrong in ("nan", "inf"):
        with pytest.raises(
            InvalidInput, match=f"log_partition must be numbers below infinity, got {wrong}"
        ):
            uai.write_probability(float(wrong), tmp_path / "PR")
        with pytest.raises(InvalidInput, match=f"marginals must be numbers below .* got {wrong}"):
            uai.write_marginals([np.array([0.5, float(wrong)])], tmp_path / "MAR")
        assert not any(tmp_path.iterdir())
        (tmp_path / "PR").write_text(f"PR {wrong}")
        with pytest.raises(
            InvalidInput, match=f"the logarithm must be numbers below infinity, got {wrong}"
        ):
            uai.read_probability(tmp_path / "PR")
        (tmp_path / "PR").unlink()
    for wrong in ("-0.5", "-inf"):  # a logarithm may be below 0, a probability may not
        (tmp_path / "MAR").write_text(f"MAR 1 2 0.5 {wrong}")
        with pytest.raises(InvalidInput, match=f"variable 0 must .* at least 0, got {wrong}"):
            uai.read_marginals(tmp_path / "MAR")
        with pytest.raises(InvalidInput, match=f"marginals must .* at least 0, got {wrong}"):
            uai.write_marginals([np.array([0.5, float(wrong)])], tmp_path / "MAR")
    uai.write_probability(-np.inf, tmp_path / "PR")  # of impossible evidence
    assert repr(uai.read_probability(tmp_path / "PR")) == "-inf"  # a float, not one of numpy's


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (uai.read_marginals, "MAR 1 1 1.0"),
        (uai.read_map, "MAP 1 0"),
        (uai.read_probability, "PR 0.5"),
        (lambda path: uai.read_evidence(path, sprinkler()), "2 0 1 1 0"),
    ],
)
def test_what_follows_the_end_is_refused(
    read: Callable[[Path], object], text: str, tmp_path: Path
) -> None:
    (tmp_path / "read").write_text(text)
    read(tmp_path / "read")
    (tmp_path / "read").write_text(f"{text} 7")
    with pytest.raises(InvalidInput, match="continues after its end"):
        read(tmp_path / "read")


def test_a_bayesian_network_has_a_table_for_each_variable(tmp_path: Path) -> None:
    (tmp_path / "m.uai").write_text(EXAMPLE.replace("MARKOV", "Bayes"))
    assert uai.read_model(tmp_path / "m.uai").children == ("x0", "x1", "x2")
    (tmp_path / "m.uai").write_text("BAYES 2 2 2 1 1 0 2 0.5 0.5")
    with pytest.raises(InvalidInput, match="one table for each variable"):
        uai.read_model(tmp_path / "m.uai")


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "cut short"), ("2 0 1", "cut short"), ("1 0 7", "below 2"), ("2 0 1 0 1", "twice")],
)
def test_bad_evidence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "evid").write_text(text)
    with pytest.raises(InvalidInput, match=said):
        uai.read_evidence(tmp_path / "evid", sprinkler())


def test_a_table_with_its_child_first_is_refused_in_the_words_of_the_format(
    tmp_path: Path,
) -> None:
    """Other programs write the states of the child one table after another."""
    (tmp_path / "m.uai").write_text("BAYES 2 2 2 2 1 0 2 0 1  2 0.8 0.2  4 0.6 0.99 0.4 0.01")
    with pytest.raises(InvalidInput, match=r"no Bayesian network: .*sums to 0.41; in a BAYES"):
        uai.read_model(tmp_path / "m.uai")
