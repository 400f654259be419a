"""Files that nobody vouches for: refused with one kind of error, in bounded memory, or marked."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pricing import cut

from mechanisms import Budget, Ledger
from mechanisms.cli import main
from mechanisms.datasets.census import census, schema
from mechanisms.release import file as release_file
from mechanisms.release.record import Release
from mechanisms.release.report import html
from mechanisms.release.tabular import TableRelease
from mechanisms.synthesis.pipeline import synthesize
from pgmkit import Boolean, Schema, encode_file
from pgmkit.bif import read_bif
from pgmkit.errors import InvalidInput
from pgmkit.model import GraphicalModel
from pgmkit.tables.files.noisy_tables import read_noisy_tables
from pgmkit.tables.records import spreadsheet_safe
from pgmkit.uai import read_model

NAMES = ["sex", "work", "income"]
SCHEMA = schema().restricted(NAMES)
MUTANTS = 100_000
LIMIT = 2**24


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "release.pgm"
    data = census(300).project(list(SCHEMA.columns))
    synthesize(
        data, SCHEMA, epsilon=1.0, delta=1e-6, mechanism="mst", neighbours="add/remove"
    ).save(path)
    return path.read_bytes()


def sealed(parts: dict[str, bytes]) -> bytes:
    """A release file of these members with a right checksum: what an adversary would write."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
        archive.comment = b" " * 64
    body = buffer.getvalue()[:-64]
    return body + release_file.checksum(body)


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def changed_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes flipped, cut out, doubled, or replaced by numbers that headers like."""
    mutant = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        if not mutant:
            break
        at = int(rng.integers(len(mutant)))
        match int(rng.integers(5)):
            case 0:
                mutant[at] ^= 1 << int(rng.integers(8))
            case 1:
                del mutant[at : at + int(rng.integers(1, 40))]
            case 2:
                mutant[at:at] = mutant[at : at + int(rng.integers(1, 40))]
            case 3:
                size = int(rng.choice([1, 2, 4, 8]))
                mutant[at : at + size] = rng.choice([b"\0", b"\xff", b"\x7f"]) * size
            case 4:
                mutant[at:at] = rng.choice(
                    [b"9999999999", b"[", b"{", b"-1", b"NaN", b'""', b"1e999"]
                )
    return bytes(mutant)


PLAIN = [
    None,
    True,
    -1,
    0,
    3,
    10**30,
    1.5,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x1b[2J",
    [],
    {},
]


def changed_json(content: bytes, rng: np.random.Generator) -> bytes:
    """One value of a JSON text replaced, removed or nested; the rest is as it was."""
    stored = json.loads(content)
    places: list[tuple[Any, Any]] = []
    left = [stored]
    while left:
        each = left.pop()
        keys = each.keys() if isinstance(each, dict) else range(len(each))
        for key in keys:
            places.append((each, key))
            if isinstance(each[key], dict | list):
                left.append(each[key])
    holder, key = places[int(rng.integers(len(places)))]
    match int(rng.integers(3)):
        case 0:
            holder[key] = PLAIN[int(rng.integers(len(PLAIN)))]
        case 1:
            del holder[key]
        case 2:
            holder[key] = [holder[key]] * int(rng.integers(0, 3))
    return json.dumps(stored).encode()


def changed_release(content: bytes, rng: np.random.Generator) -> bytes:
    """A mutant of the file itself, or of one part inside, sealed again."""
    if rng.random() < 0.2:
        return changed_bytes(content, rng)
    parts = members(content)
    name = str(rng.choice(sorted(parts)))
    if name.endswith(".json") and rng.random() < 0.7:
        parts[name] = changed_json(parts[name], rng)
    elif name.endswith(".npz") and rng.random() < 0.7:
        inner = members(parts[name])
        one = str(rng.choice(sorted(inner)))
        inner[one] = changed_bytes(inner[one], rng)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for key, value in inner.items():
                archive.writestr(key, value)
        parts[name] = buffer.getvalue()
    else:
        parts[name] = changed_bytes(parts[name], rng)
    return sealed(parts)


SCHEMA_TEXT = json.dumps(
    {
        "columns": {
            "age": {"type": "integer", "low": 0, "high": 99, "bins": 10},
            "sex": {"type": "categorical", "values": ["F", "M"], "other": "F", "missing": ["?"]},
            "born": {"type": "date", "low": "1990-01-01", "high": "2020-12-31", "bins": 12},
            "wage": {"type": "numeric", "edges": [0, 1.5, 9], "outside": "clip"},
            "ill": {"type": "boolean"},
        },
        "constraints": [{"forbid": {"age": "0..9", "sex": "M"}}],
        "file": {"separator": ";"},
    }
).encode()
YAML_TEXT = b"""columns:
  age: {type: integer, low: 0, high: 99, bins: 10}
  sex: &s {type: categorical, values: [F, M]}
  other: *s
constraints:
- when: {age: 0..9}
  then: {sex: F}
"""


def read_release(path: Path) -> object:
    return TableRelease.load(path, allow_modified=True, max_bytes=LIMIT)


def attempts(saved: bytes, tmp_path: Path, count: int, seed: int) -> dict[str, int]:
    """Read so many mutants of releases, models and schemas; how many were still readable."""
    rng = np.random.default_rng(seed)
    model = members(saved)["model.npz"]
    kinds: list[tuple[str, Callable[[], bytes], Callable[[Path], object]]] = [
        ("a.pgm", lambda: changed_release(saved, rng), read_release),
        (
            "b.npz",
            lambda: changed_bytes(model, rng),
            lambda p: GraphicalModel.load(p, max_bytes=LIMIT),
        ),
        ("c.json", lambda: changed_json(SCHEMA_TEXT, rng), Schema.load),
        ("d.json", lambda: changed_bytes(SCHEMA_TEXT, rng), Schema.load),
        ("e.yaml", lambda: changed_bytes(YAML_TEXT, rng), Schema.load),
    ]
    readable = dict.fromkeys([name for name, _, _ in kinds], 0)
    for i in range(count):
        name, mutate, read = kinds[i % len(kinds)]
        path = tmp_path / name
        path.write_bytes(mutate())
        try:
            read(path)
            readable[name] += 1
        except InvalidInput:
            pass
        except BaseException:
            path.rename(Path("/tmp") / f"pgmkit-mutant-{name}")
            raise
    return readable


MODELS = ("mst", "mwem", "dual-query", "matrix", "mixture")
"""Mechanisms whose releases hold models of every kind."""
NUMBERS = [
    *(np.float64(each).tobytes() for each in (np.nan, np.inf, -5.0, 1e300, 0.0)),
    *(np.int64(each).tobytes() for each in (-1, 7, 2**62)),
]


def releases(folder: Path, seed: int) -> list[bytes]:
    """A release of each kind of model, the same in every run, so that a failure comes again."""
    data = census(300).project(list(SCHEMA.columns))
    found = []
    for mechanism in MODELS:
        release = synthesize(
            data,
            SCHEMA,
            epsilon=1.0,
            delta=1e-6,
            mechanism=mechanism,
            settings=cut(mechanism),
            seed=seed,
        )
        release.save(folder / "release.pgm")
        found.append((folder / "release.pgm").read_bytes())
    return found


def changed_values(content: bytes, rng: np.random.Generator) -> bytes:
    """One value of a release's JSON or one number of its arrays replaced, and sealed again."""
    parts = members(content)
    name = str(rng.choice(sorted(parts)))
    if name.endswith(".json"):
        parts[name] = changed_json(parts[name], rng)
        return sealed(parts)
    arrays = members(parts[name])
    one = str(rng.choice(sorted(arrays)))
    array = bytearray(arrays[one])
    at = len(array) - 8 * int(rng.integers(1, max(2, (len(array) - 120) // 8)))
    array[at : at + 8] = NUMBERS[int(rng.integers(len(NUMBERS)))]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for key, value in {**arrays, one: bytes(array)}.items():
            archive.writestr(key, value)
    return sealed({**parts, name: buffer.getvalue()})


def used_in_every_way(release: TableRelease, folder: Path, *, page: bool) -> None:
    tables = release.model.__class__.__name__ == "TablesModel"
    if not tables:  # from which no records can be drawn, whoever wrote them
        release.sample(5, rng=0)
    release.table("sex")
    release.ask("sex, income")
    assert repr(release) and release._repr_html_() and str(release.ledger)
    if page:
        assert html(release)
    release.save(folder / "again.pgm")
    TableRelease.load(folder / "again.pgm", allow_modified=True)


@pytest.mark.parametrize(
    ("count", "seed"),
    [(200, 0), *(pytest.param(5000, seed, marks=pytest.mark.slow) for seed in (1, 2))],
)
def test_what_is_read_can_be_used_in_every_way(count: int, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    found = releases(tmp_path, seed)
    used = 0
    for i in range(count):
        path = tmp_path / "mutant.pgm"
        path.write_bytes(changed_values(found[i % len(found)], rng))
        try:
            release = TableRelease.load(path, allow_modified=True, max_bytes=LIMIT)
        except InvalidInput:
            continue
        used += 1
        used_in_every_way(release, tmp_path, page=i % 8 == 0 or count > 1000)
    assert used > count / 20, "hardly any mutant was read"


@pytest.mark.parametrize("clique", ["sex", "work"])
@pytest.mark.parametrize("value", [1e300, -1e300, 1e17, -1e17])
def test_logarithms_beside_which_others_are_lost_are_refused(
    saved: bytes, tmp_path: Path, clique: str, value: float
) -> None:
    """Beside 1e300 in one table of logarithms the other tables would count for nothing."""
    parts = members(saved)
    arrays = members(parts["model.npz"])
    cliques = json.loads(str(np.load(io.BytesIO(arrays["header.npy"]))))["cliques"]
    place = next(i for i, held in enumerate(cliques) if clique in held)
    table = np.load(io.BytesIO(arrays[f"potential{place}.npy"]))
    table.flat[0] = value
    changed, buffer = io.BytesIO(), io.BytesIO()
    np.save(changed, table)
    with zipfile.ZipFile(buffer, "w") as archive:
        for key, content in {**arrays, f"potential{place}.npy": changed.getvalue()}.items():
            archive.writestr(key, content)
    path = tmp_path / "large.pgm"
    path.write_bytes(sealed({**parts, "model.npz": buffer.getvalue()}))
    with pytest.raises(InvalidInput, match=r"large\.pgm.*minus infinity where"):
        TableRelease.load(path)


def test_mutated_files_are_refused_or_read(saved: bytes, tmp_path: Path) -> None:
    attempts(saved, tmp_path, 400, seed=1)


@pytest.mark.slow
def test_a_hundred_thousand_mutated_files_in_bounded_memory(saved: bytes, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(attempts(saved, tmp_path, MUTANTS, seed=2))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"memory grew by {grown / 1024:.0f} MB")
    assert grown < 2**20  # KB


def test_a_changed_file_is_not_read_unless_asked_and_says_so(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.pgm"
    path.write_bytes(saved)
    assert Release.load(path).secure and Release.load(path).caution == ""
    parts = members(saved)
    parts["measurements.json"] = parts["measurements.json"].replace(b'"stddev": ', b'"stddev": 1')
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    for changed in (
        buffer.getvalue(),
        saved[:-1] + bytes([saved[-1] ^ 1]),
        saved[:10] + bytes([saved[10] ^ 1]) + saved[11:],  # a time, which nothing reads
    ):
        path.write_bytes(changed)
        with pytest.raises(InvalidInput, match="checksum is wrong"):
            Release.load(path)
        loaded = Release.load(path, allow_modified=True)
        assert loaded.modified and not loaded.secure
        assert "INSECURE" in loaded.caution and "modified" in loaded.caution
        assert "INSECURE" in repr(loaded) and "modified" in repr(loaded)
    loaded.save(path)
    assert Release.load(path).modified, "writing a modified release again must not clean it"


def invoked(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("kind", ["seeded", "modified", "clean"])
def test_every_command_says_that_a_release_is_insecure(
    saved: bytes, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "r.pgm"
    path.write_bytes(saved[:10] + bytes([saved[10] ^ (kind == "modified")]) + saved[11:])
    if kind == "seeded":
        data = census(300).project(list(SCHEMA.columns))
        synthesize(data, SCHEMA, epsilon=1.0, delta=1e-6, mechanism="mst", seed=0).save(path)
    allow = ["--allow-modified"] if kind == "modified" else []
    page = tmp_path / "report.html"
    for arguments in (
        ["query", path, "income"],
        ["sample", path, "--rows", 5, "--out", tmp_path / "s.csv"],
        ["ledger", path],
        ["report", path, "-o", page],
    ):
        text = invoked(*arguments, *allow)
        stored = json.loads(invoked(*arguments, *allow, "--json"))
        assert ("INSECURE" in text) == (kind != "clean"), arguments
        assert ("INSECURE" in stored) == (kind != "clean"), arguments
        assert ("modified" in text) == (kind == "modified"), arguments
        assert text.count("INSECURE") <= 1
        if arguments[0] == "report":
            assert stored["private"] == (kind == "clean")
    assert ("INSECURE" in page.read_text()) == (kind != "clean")
    if kind == "modified":
        refused = CliRunner().invoke(main, ["query", str(path), "income"])
        assert refused.exit_code == 2 and "--allow-modified" in refused.output


BOMB = """
import io, resource, sys, zipfile, numpy as np
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
from mechanisms.release.record import Release
from pgmkit.errors import InvalidInput
for path in sys.argv[1:]:
    try:
        Release.load(path)
    except InvalidInput as error:
        print(str(error).replace("\\n", " "))
# Not ru_maxrss, which begins at the parent's peak.
lines = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024)
"""


def peak_of_refusals(paths: list[Path]) -> int:
    """The memory in MB that a process takes which refuses these releases."""
    found = subprocess.run(
        [sys.executable, "-c", BOMB, *paths], capture_output=True, text=True, check=True
    )
    *messages, peak = found.stdout.splitlines()
    assert len(messages) == len(paths)
    assert all(message.count("is not a release file") == 1 for message in messages)
    return int(peak)


def test_small_files_that_stand_for_much_are_refused_in_little_memory(
    saved: bytes, tmp_path: Path
) -> None:
    """Texts of no length, of which numpy makes some of four bytes; lists of lists; deep ones."""
    parts = members(saved)
    header = b"{'descr': '<U0', 'fortran_order': False, 'shape': (999999999,), }".ljust(117) + b"\n"
    inner = {**members(parts["model.npz"]), "potential0.npy": b"\x93NUMPY\x01\x00v\x00" + header}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for key, value in inner.items():
            archive.writestr(key, value)
    lists = b'{"format": ["pgmkit release", 2, ' + b"[[],[],[]]," * 2_500_000 + b"0]}"
    changed = {
        "model.npz": buffer.getvalue(),
        "release.json": lists,
        "measurements.json": b"[" * 10_000_000,
    }
    for name, content in changed.items():
        (tmp_path / name).write_bytes(sealed({**parts, name: content}))
        assert (tmp_path / name).stat().st_size < 200_000
    assert peak_of_refusals([tmp_path / name for name in changed]) < 700


def test_a_bomb_is_not_expanded(saved: bytes, tmp_path: Path) -> None:
    """1 MB that stands for 1 GB of zeros; and an array whose header states 8 TB."""
    parts = members(saved)
    inner = io.BytesIO()
    header = (
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (1073741824,), }".ljust(117) + b"\n"
    )
    with (
        zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("m0.values.npy", "w", force_zip64=True) as file,
    ):
        file.write(b"\x93NUMPY\x01\x00v\x00" + header)
        for _ in range(2**10):
            file.write(bytes(2**20))
    small = io.BytesIO()
    np.save(small, np.zeros(3))
    stated = small.getvalue().replace(b"(3,), }", b"(999999999999,), }").replace(b" " * 11, b"", 1)
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("m0.values.npy", stated)
    paths = [tmp_path / "a.pgm", tmp_path / "b.pgm"]
    for path, bomb in zip(paths, (inner.getvalue(), outer.getvalue()), strict=True):
        path.write_bytes(sealed({**parts, "measurements.npz": bomb}))
        assert path.stat().st_size < 3_000_000
    assert peak_of_refusals(paths) < 700


def test_parts_that_contradict_each_other_are_refused(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.pgm"

    def reading(change: Callable[[dict[str, Any], list[Any]], None]) -> None:
        parts = members(saved)
        header = json.loads(parts["release.json"])
        stored = json.loads(parts["measurements.json"])
        change(header, stored)
        parts |= {"release.json": json.dumps(header).encode()}
        parts |= {"measurements.json": json.dumps(stored).encode()}
        path.write_bytes(sealed(parts))
        TableRelease.load(path)

    reading(lambda header, stored: None)
    reading(lambda header, stored: [header.pop(key) for key in ("exact", "reason", "made_by")])
    assert TableRelease.load(path).made_by == ""  # as in files of before these keys
    changes: list[Callable[[dict[str, Any], list[Any]], Any]] = [
        lambda header, stored: stored[0].update(clique=["nobody"]),
        lambda header, stored: stored[0].update(stddev=-1.0),
        lambda header, stored: stored[0].update(prefix="m1"),
        lambda header, stored: stored.append(stored[0]),  # noise drawn once would count twice
        lambda header, stored: stored.pop(),
        lambda header, stored: stored[0].update(clique=["sex", "work", "income"]),
        lambda header, stored: header["schema"]["columns"].pop("sex"),
        lambda header, stored: header["schema"]["columns"].update(
            sex={"type": "integer", "low": 0, "high": 10**15}
        ),
        lambda header, stored: header["ledger"]["entries"][0].update(cost=1e6),
        lambda header, stored: header["ledger"].update(secure="yes"),
        lambda header, stored: header.update(mechanism=["mst"]),
        lambda header, stored: header.update(settings={"nothing": 1}),
        lambda header, stored: header.update(exact=len(stored) + 1),
        lambda header, stored: header.update(exact=True),
        lambda header, stored: header.update(reason=["a", "list"]),
        lambda header, stored: header.update(made_by=1),
    ]
    for change in changes:
        with pytest.raises(InvalidInput, match="is not a release file"):
            reading(change)


def test_a_key_given_twice_is_refused(saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "tables.json").write_text(
        '[{"columns": ["a"], "values": [3, 4], "stddev": 1, "stddev": 9}]'
    )
    with pytest.raises(InvalidInput, match=r"tables\.json.*'stddev' is given twice"):
        read_noisy_tables(tmp_path / "tables.json", Schema({"a": Boolean()}))
    parts = members(saved)
    header = parts["release.json"].replace(b"{", b'{"mechanism": "aim", ', 1)
    (tmp_path / "r.pgm").write_bytes(sealed({**parts, "release.json": header}))
    with pytest.raises(InvalidInput, match="'mechanism' is given twice"):
        TableRelease.load(tmp_path / "r.pgm")


@pytest.mark.parametrize(
    ("name", "read"),
    {
        "s.yaml": Schema.load,
        "r.pgm": TableRelease.load,
        "m.pgm": GraphicalModel.load,
        "l.ledger": lambda path: Ledger.open(path).spent,
        "m.uai": read_model,
        "m.bif.gz": read_bif,
        "t.csv": lambda path: read_noisy_tables(path, SCHEMA),
        "t.json": lambda path: read_noisy_tables(path, SCHEMA),
        "p.csv": lambda path: encode_file(path, SCHEMA),
    }.items(),
)
def test_pipes_and_devices_are_not_read(
    name: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    """A pipe may never be written to, and some devices have no end."""
    pipe, device = tmp_path / name, tmp_path / f"device{name}"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)  # with both ends open, no opening of it waits
    device.symlink_to("/dev/full")
    for path in (pipe, device):
        with pytest.raises(InvalidInput, match=r"/(dev)?.*is a pipe or a device"):
            read(path)
    os.close(held)


def test_no_file_takes_the_place_of_a_pipe_or_a_device(tmp_path: Path) -> None:
    """The administrator of a machine could replace /dev/null for all programs."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(InvalidInput, match=r"pipe\.yaml: it is a pipe or a device"):
        SCHEMA.save(pipe)
    assert pipe.is_fifo()


def test_hostile_schemas_are_refused(tmp_path: Path) -> None:
    laughs = "columns:\n  a0: &a0 [x, x]\n" + "".join(
        f"  a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)
    )
    for name, text in {
        "deep.json": "[" * 100_000,
        "deep.yaml": "[" * 2_000,
        "self.yaml": "columns: &a {a: *a}",
        "laughs.yaml": laughs,
        "wide.json": '{"columns": {"a": {"type": "integer", "low": 0, "high": 100000000000}}}',
        "pairs.json": json.dumps(
            {
                "columns": {n: {"type": "integer", "low": 0, "high": 99999} for n in "abc"},
                "constraints": [{"forbid": {"a": 1, "b": 1, "c": 1}}],
            }
        ),
        "kinds.json": '{"columns": {"a": {"type": ["integer"]}}}',
        "list.json": '{"columns": {"a": {"type": "boolean"}}, "constraints": 3}',
        "half.json": '{"columns": {"a": {"type": "categorical", "values": ["\\ud800"]}}}',
        "names.json": '{"columns": {"a": {"type": "categorical", "values": {"man": 1}}}}',
        "many.yaml": "a: [" + "[]," * 300_000 + "]",  # each takes 1 KB while it is parsed
    }.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(InvalidInput, match=name):
            Schema.load(tmp_path / name)


def test_labels_cannot_steer_the_terminal(tmp_path: Path) -> None:
    from pgmkit.runtime.printed import printable

    hostile = "\x1b]0;owned\x07F\x1b[2J\x1b[31m\u202e\x9b2J"
    assert printable(f"a {hostile} b\tc\n") == "a F b\tc\n"
    rng = np.random.default_rng(0)
    for _ in range(2000):
        text = "".join(map(chr, rng.choice([27, 155, 91, 93, 7, 92, 48, 109, 10, 0x90], 12)))
        assert not set(printable(text)) & {"\x1b", "\x9b", "\x07", "\x90"}
    forged = hostile + "\nM  9999\x85\u2028"
    people = {"sex": {"type": "categorical", "values": [forged, "M"]}}
    (tmp_path / "s.json").write_text(json.dumps({"columns": people}))
    (tmp_path / "d.csv").write_text("sex\n" + "M\n" * 50)
    out = tmp_path / "r.pgm"
    arguments = ["synth", tmp_path / "d.csv", "--schema", tmp_path / "s.json", "--save", out]
    invoked(*arguments, "--mechanism", "independent", "--workload", "1")
    shown = invoked("query", out, "sex")
    assert "F" in shown and "\x1b" not in shown and "\x9b" not in shown
    release = TableRelease.load(out)
    reply = release.table("sex")
    for text in (str(reply), reply._repr_html_(), release._repr_html_(), html(release), shown):
        assert not set(text) & {"\x1b", "\x9b", "\x07", "\u202e", "\x85", "\u2028"}
    lines = str(reply).splitlines()
    assert not any(line.startswith("M  9999") for line in lines) and len(lines) >= 3
    ledger = Ledger(Budget(1.0))
    ledger.charge("a\nspent 0 of 1\x1b[2J", "by hand", 0.5)
    assert len(str(ledger).splitlines()) == 3 and "\x1b" not in str(ledger)


def test_cells_that_a_spreadsheet_would_run_are_quoted_on_demand(tmp_path: Path) -> None:
    labels = ["=cmd|' /C calc'!A0", "@sum", "-2+3", "plain"]
    for blank in (" ", "\ufeff", "\xa0", "\u200b", "\u3000 ", "\x00"):
        assert spreadsheet_safe(f"{blank}=1") == f"'{blank}=1"
    assert spreadsheet_safe(" a=1") == " a=1"
    columns = {
        "x": {"type": "categorical", "values": labels},
        "n": {"type": "integer", "low": -3, "high": -1},
    }
    (tmp_path / "s.json").write_text(json.dumps({"columns": columns}))
    lines = [f'"{labels[i % 4]}",-{1 + i % 3}' for i in range(400)]
    (tmp_path / "d.csv").write_text("x,n\n" + "\n".join(lines) + "\n")
    out = tmp_path / "o.csv"
    common = ["--schema", tmp_path / "s.json", "--mechanism", "independent", "--workload", "1"]
    arguments = ["synth", tmp_path / "d.csv", *common, "--out", out, "--save", tmp_path / "r.pgm"]
    invoked(*arguments)
    assert "\n=cmd" in out.read_text()
    (tmp_path / "r.pgm").unlink()  # a saved release is not replaced
    invoked(*arguments, "--safe-csv")
    text = out.read_text()
    assert "\n'=cmd" in text and "\n'@sum" in text and "\n'-2+3" in text and "\nplain" in text
    assert "\n=" not in text and ",-" in text and ",'-" not in text
    invoked("sample", tmp_path / "r.pgm", "--rows", 200, "--out", out, "--safe-csv")
    assert "\n=" not in out.read_text() and "\n'=" in out.read_text()
