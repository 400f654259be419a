"""Network files of strangers: little memory, and one kind of error."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from test_factor_graph import sprinkler

from pgmkit import FactorGraph, InvalidInput
from pgmkit.bif import from_pgmpy, read_bif, to_pgmpy, write_bif
from pgmkit.uai import read_model


@pytest.fixture
def network(tmp_path: Path) -> bytes:
    tables = {"a": (("a",), np.array([0.25, 0.75])), "b": (("b", "a"), np.full((2, 2), 0.5))}
    write_bif(FactorGraph.from_conditionals(tables), tmp_path / "n.bif")
    return (tmp_path / "n.bif").read_bytes()


def test_a_packed_network_is_read_and_a_bomb_is_not(network: bytes, tmp_path: Path) -> None:
    path = tmp_path / "n.bif.gz"
    path.write_bytes(gzip.compress(network))
    assert set(read_bif(path).domain) == {"a", "b"}
    for content in (bytes(1 << 25), network + b" " * (1 << 24)):
        path.write_bytes(gzip.compress(content, 1))
        with pytest.raises(InvalidInput, match="would expand to more than"):
            read_bif(path)
    (tmp_path / "n.bif").write_bytes(network + b" " * (1 << 24))
    with pytest.raises(InvalidInput, match="more than 16,777,216 bytes"):
        read_bif(tmp_path / "n.bif")


def test_the_last_ending_decides_how_a_network_is_read(network: bytes, tmp_path: Path) -> None:
    (tmp_path / "n.xml.BIF.GZ").write_bytes(gzip.compress(network))
    assert set(read_bif(tmp_path / "n.xml.BIF.GZ").domain) == {"a", "b"}
    write_bif(read_bif(tmp_path / "n.xml.BIF.GZ"), tmp_path / "n.bif.xml")
    assert set(read_bif(tmp_path / "n.bif.xml").domain) == {"a", "b"}
    (tmp_path / "n.bif.txt").write_bytes(network)
    with pytest.raises(InvalidInput, match="the name must end in"):
        read_bif(tmp_path / "n.bif.txt")


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
def test_lines_of_other_systems(network: bytes, end: bytes, tmp_path: Path) -> None:
    (tmp_path / "n.bif").write_bytes(b"\xef\xbb\xbf" + network.replace(b"\n", end))
    assert read_bif(tmp_path / "n.bif").states == {"a": ("0", "1"), "b": ("0", "1")}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "0.25",
            "0.16",
            r"n.bif': the distribution of 'a' sums to 0.91; a sum within 1e-05 of one",
        ),
        ("0.25, 0.75", "0, 0", "n.bif': the distribution of 'a' is missing"),
        ("}", "", "n.bif' is not a Bayesian network's file.* look for a brace that is missing"),
    ],
)
def test_what_is_wrong_with_a_network_is_said(
    network: bytes, old: str, new: str, said: str, tmp_path: Path
) -> None:
    text = network.decode()
    assert old in text
    (tmp_path / "n.bif").write_text(text.replace(old, new))
    with pytest.raises(InvalidInput, match=said):
        read_bif(tmp_path / "n.bif")


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("n.bif", r"variable a.*?\n\}\n"),
        ("n.bif", r"probability.*?\n\}\n"),
        ("n.xml", "<VARIABLE.*?</VARIABLE>"),
        ("n.xml", "<DEFINITION.*?</DEFINITION>"),
    ],
)
def test_what_is_declared_twice_is_refused(
    network: bytes, name: str, block: str, tmp_path: Path
) -> None:
    (tmp_path / "n.bif").write_bytes(network)
    write_bif(read_bif(tmp_path / "n.bif"), tmp_path / "n.xml")
    text = (tmp_path / name).read_text()
    found = re.search(block, text, re.DOTALL)
    assert found
    (tmp_path / name).write_text(text.replace(found[0], 2 * found[0]))
    with pytest.raises(InvalidInput, match="has two entries of one kind; keep one of them"):
        read_bif(tmp_path / name)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("( 1 )", "( 0 )", "the table of 'b' gives a row twice"),
        ("( 1 ) 0.5", "(0)0.1, 0.9;(1) 0.5", "the table of 'b' gives a row twice"),
        ("( 1 )", "default 1, 0; default", "the table of 'b' gives a row twice"),
        ("table", "default 0.5, 0.5; default", "the table of 'a' gives a row twice"),
        (r"\( 1 \).*", "", "the distribution of 'b' given a = 1 is missing"),
    ],
)
def test_each_row_of_a_table_is_given_once(
    network: bytes, old: str, new: str, said: str, tmp_path: Path
) -> None:
    old = old if "*" in old else re.escape(old)
    text, count = re.subn(old, new, network.decode())
    assert count == 1
    (tmp_path / "n.bif").write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_bif(tmp_path / "n.bif")


def test_the_example_of_the_format(tmp_path: Path) -> None:
    """Comments, properties, names in quotes and without commas, whole tables and defaults."""
    text = """
    // "Interchange Format for Bayesian Networks", version 0.15
    network "Dog Problem" { property "version = 1; 4 numbers"; }
    variable "light-on" { type discrete[2] { "true" "false" }; property position = (218, 195); }
    variable family-out /* with a comment } */ { type discrete [ 2 ] { true, false } }
    variable "dog out" { type discrete [ 3 ] { in, "not in", out or away }; }
    variable sure { type discrete [ 1 ] { always so }; }
    probability ( sure ) { table 1; }
    probability ( "light-on" "family-out" ) { table 0.6 0.05 0.4 0.95; }
    probability ( family-out ) { table 0.15, 0.85; }
    probability ( "dog out" | light-on, family-out ) {
      default 0.2 0.3 0.5;
      (true, false) 0.5, 0.25, 0.25;
    }
    """
    (tmp_path / "dog.bif").write_text(text)
    graph = read_bif(tmp_path / "dog.bif")
    assert graph.states["dog out"] == ("in", "not in", "out or away")
    assert graph.states["light-on"] == ("true", "false")
    assert graph.states["sure"] == ("always so",)
    tables = dict(graph.tables)
    np.testing.assert_array_equal(tables["light-on", "family-out"], [[0.6, 0.05], [0.4, 0.95]])
    dog = np.moveaxis(tables["dog out", "light-on", "family-out"], 0, -1)
    np.testing.assert_array_equal(dog[0, 1], [0.5, 0.25, 0.25])
    np.testing.assert_array_equal(dog[[0, 1, 1], [0, 0, 1]], [[0.2, 0.3, 0.5]] * 3)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("variable c { type real; }", "'c' has no `type discrete"),
        ("variable c { type discrete [ 2 ] { x, x }; }", "'c' has a state twice"),
        ("variable c { type discrete [ 3 ] { x, y }; }", "'x, y' must be 3 names"),
        ("variable c { type discrete [ 3 ] { x , y }; }", "'x , y' must be 3 names"),
        ("variable c { type discrete [ 2 ] { 1,5 2,5 }; }", "'1,5 2,5' must be 2 names"),
        ("probability ( c | a ) { table 1; }", "a table names 'c', which is no variable"),
        ("probability ( ) { table 1; }", "a table names '', which is no variable"),
        ("variable c { type discrete [ 2 ] { x, y }; } probability ( c ) { table 1; }", "have 2"),
        (
            "variable c { type discrete [ 2 ] { x, y }; } probability ( c | a ) { ( 2 ) 1, 0; }",
            "'2'",
        ),
        ("variable c { type discrete [ 2 ] { x, y }; } probability ( c ) { xyz; }", "like 'xyz'"),
        ("variable c { type discrete [ 2 ] { x, y }; }", "variable 'c' has no table of prob"),
    ],
)
def test_what_is_wrong_with_a_block_is_said(
    network: bytes, block: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "n.bif").write_text(network.decode() + block)
    with pytest.raises(InvalidInput, match=said):
        read_bif(tmp_path / "n.bif")


@pytest.mark.parametrize(
    "part", ['"', "/*", "property ", "{", "\t", "(", "variable ", "probability (a|", "//", "}"]
)
@pytest.mark.parametrize("before", ["", "variable a {", "probability ( b | a ) {"])
def test_no_long_text_takes_long(before: str, part: str, tmp_path: Path) -> None:
    """Time that grows by the square of the length would be a million times as long here."""
    (tmp_path / "n.bif").write_text(before + part * 1_000_000)
    with pytest.raises(InvalidInput):
        read_bif(tmp_path / "n.bif")


def test_names_may_have_the_word_property(tmp_path: Path) -> None:
    names = '"my property", no-property, "; property"'
    (tmp_path / "n.bif").write_text(
        f"variable a {{ property x = 1; type discrete [ 3 ] {{ {names} }}; property y; }}\n"
        "probability ( a ) { property z; property; table 0.25, 0.5, 0.25; }"
    )
    graph = read_bif(tmp_path / "n.bif")
    assert graph.states == {"a": ("my property", "no-property", "; property")}
    assert graph.tables[0][1].tolist() == [0.25, 0.5, 0.25]


def test_comments_between_numbers(network: bytes, tmp_path: Path) -> None:
    (tmp_path / "n.bif").write_bytes(network)
    write_bif(read_bif(tmp_path / "n.bif"), tmp_path / "n.xml")
    text = (tmp_path / "n.xml").read_text().replace("0.25 0.75", "0.25 <!-- yes --> 0.75")
    (tmp_path / "n.xml").write_text(re.sub(r">(\w+)<", r">\n \1 <", text))
    assert read_bif(tmp_path / "n.xml").states == {"a": ("0", "1"), "b": ("0", "1")}
    np.testing.assert_array_equal(dict(read_bif(tmp_path / "n.xml").tables)[("a",)], [0.25, 0.75])


def test_a_short_file_of_a_huge_table_is_refused(tmp_path: Path) -> None:
    names = [f"v{number}" for number in range(40)]
    text = "".join(f"variable {n} {{ type discrete [ 2 ] {{ 0, 1 }}; }}\n" for n in names)
    text += f"probability ( v0 | {', '.join(names[1:])} ) {{ default 0.5, 0.5; }}"
    (tmp_path / "n.bif").write_text(text)
    with pytest.raises(InvalidInput, match="the network needs"):
        read_bif(tmp_path / "n.bif")


def five_variables() -> FactorGraph:
    """Parents of different sizes, so that no order of them can pass for another."""
    rng, sizes = np.random.default_rng(0), {"a": 2, "b": 3, "c": 4, "d": 3, "e": 2}
    given = {"a": (), "b": ("a",), "c": ("b", "a"), "d": ("c", "a", "b"), "e": ()}
    tables = {}
    for child, parents in given.items():
        table = rng.exponential(size=[sizes[each] for each in (child, *parents)])
        tables[child] = ((child, *parents), table / table.sum(0))
    states = {name: [f"{name}{code}" for code in range(size)] for name, size in sizes.items()}
    return FactorGraph.from_conditionals(tables, states=states)


@pytest.mark.parametrize("name", ["net.BIF", "net.xml", "net.bifxml"])
def test_a_network_is_written_and_read(name: str, tmp_path: Path) -> None:
    graph = sprinkler()
    write_bif(graph, str(tmp_path / name))
    again = read_bif(tmp_path / name)
    assert again.states["rain"] == ("no", "yes")
    found = again.posterior({"wet": "wet"}).marginal(["rain"])
    np.testing.assert_allclose(found, graph.posterior({"wet": 1}).marginal(["rain"]), atol=1e-9)
    text = (tmp_path / name).read_text()
    for left, said in ((text[: len(text) // 2], "cut short"), ("\n", "it is empty")):
        (tmp_path / name).write_text(left)
        with pytest.raises(InvalidInput, match=said):
            read_bif(tmp_path / name)


@pytest.mark.parametrize("suffix", [".bif", ".xml"])
def test_files_of_pgmpy_are_read_and_read_by_it(suffix: str, tmp_path: Path) -> None:
    readwrite = pytest.importorskip("pgmpy.readwrite", reason="pgmpy is not installed")
    graph = five_variables()
    assert to_pgmpy(graph).check_model()
    text = suffix == ".bif"
    writer = readwrite.BIFWriter if text else readwrite.XMLBIFWriter
    reader = readwrite.BIFReader if text else readwrite.XMLBIFReader
    (tmp_path / f"theirs{suffix}").write_text(str(writer(to_pgmpy(graph))))
    write_bif(graph, tmp_path / f"mine{suffix}")
    content = (tmp_path / f"mine{suffix}").read_text().partition("?>\n")
    back = from_pgmpy(reader(string=content[2] or content[0]).get_model())
    joint = graph.posterior().marginal(tuple("abcd"))
    for each in (
        back,
        read_bif(tmp_path / f"theirs{suffix}"),
        read_bif(tmp_path / f"mine{suffix}"),
    ):
        assert each.states == graph.states
        np.testing.assert_allclose(each.posterior().marginal(tuple("abcd")), joint, atol=1e-7)


@pytest.mark.parametrize("suffix", [".bif", ".xml"])
@pytest.mark.parametrize(
    ("name", "states", "held"),
    [
        ("a", ("no", "yes"), (".bif", ".xml")),
        ("two words", ("no", "yes"), (".xml",)),
        ('quoted"', ("no", "yes"), (".xml",)),
        ("a", ("a,b", "c"), (".xml",)),
        ("a", (0.5, 1.5), (".bif", ".xml")),
        ("a", ("x-y", "x_y"), (".bif", ".xml")),
        ("a", ("", "x"), (".xml",)),
        ("a", ("x", "y//z"), (".xml",)),
        ("a", ("x", "y\x00"), (".bif",)),
        ("property", ("no", "yes"), (".bif", ".xml")),
        ("a", ("property", "yes"), (".xml",)),
        ("a", (1, "1"), ()),
    ],
)
def test_a_file_that_would_be_read_as_another_network_is_not_written(
    name: str, states: tuple[str, str], held: tuple[str, ...], suffix: str, tmp_path: Path
) -> None:
    tables = {name: ((name,), np.array([0.25, 0.75])), "b": (("b", name), np.eye(2))}
    graph, path = FactorGraph.from_conditionals(tables, states={name: states}), tmp_path / "n"
    path = path.with_suffix(suffix)
    if suffix in held:
        write_bif(graph, path)
        found = read_bif(path)
        assert found.states[name] == tuple(map(str, states))
        np.testing.assert_allclose(found.posterior().marginal(["b"]), [0.25, 0.75])
    else:
        said = "cannot hold this network" if held else "must be different texts"
        with pytest.raises(InvalidInput, match=said):
            write_bif(graph, path)
        assert not path.exists()


@pytest.mark.parametrize("names", [(1, "1"), ("1", 1)])
def test_two_variables_of_one_text_are_refused(names: tuple[object, ...]) -> None:
    """Otherwise one of them would take the place of the other."""
    pytest.importorskip("pgmpy", reason="pgmpy is not installed")
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.models import DiscreteBayesianNetwork

    model = DiscreteBayesianNetwork()
    model.add_nodes_from(names)
    model.add_cpds(*(TabularCPD(name, 2, [[0.25], [0.75]]) for name in names))
    with pytest.raises(InvalidInput, match="two variables have the name '1'"):
        from_pgmpy(model)


def test_mutated_networks_are_refused_or_read(network: bytes, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        mutant = bytearray(network)
        at, size = int(rng.integers(len(mutant))), int(rng.integers(1, 20))
        mutant[at : at + size] = rng.choice([b"", b"nan", b"-1", b"{", b"\xff", b"9" * 5000])
        path = tmp_path / "m.bif"
        path.write_bytes(mutant)
        try:
            read_bif(path)
        except InvalidInput as error:
            assert "m.bif" in str(error)
    (tmp_path / "m.xml").write_text("<!DOCTYPE BIF [<!ENTITY a 'x'>]><BIF/>")
    with pytest.raises(InvalidInput, match="entities"):
        read_bif(tmp_path / "m.xml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<BIF><a></BIF>", "cut short: mismatched tag: line 1, column 10$"),
        ("<BIF VERSION='0.3'></BIF>", "no table of a variable was found in it$"),
        ("<BIF><VARIABLE/></BIF>", "it has another format, or it is cut off or damaged$"),
    ],
)
def test_refusals_are_sentences(text: str, said: str, tmp_path: Path) -> None:
    """They do not show the exceptions of other packages."""
    (tmp_path / "m.xml").write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_bif(tmp_path / "m.xml")


@pytest.mark.parametrize(
    "text", ["MARKOV 1 " + "9" * 5000 + " 0", "MARKOV 1 99999999999999 0", "MARKOV " + "9" * 17]
)
def test_numbers_of_any_length_in_uai_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "m.uai"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="m.uai"):
        read_model(path)
