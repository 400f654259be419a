"""The main jobs where Python lacks what only Unix has, as on Windows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mechanisms.cli import main
from pgmkit.runtime.printed import shell_word

PROGRAM = r"""
import datetime, os, re, signal, sys, warnings
import filelock, pandas, pyarrow, torch, opendp.prelude  # packages that know the real system
from opendp.mod import enable_features

for name in ("sysconf", "sched_getaffinity", "fork", "getuid", "geteuid", "register_at_fork"):
    delattr(os, name)
for name in ("SIGHUP", "SIGXCPU", "SIGKILL", "SIGUSR1", "SIGALRM", "setitimer", "pthread_kill"):
    delattr(signal, name)
class Strict(datetime.datetime):
    def strftime(self, form):
        if re.search("%[^aAbBcdfHIjmMpSUwWxXyYzZ%]", form):
            raise ValueError("Invalid format string")
        return super().strftime(form)

datetime.datetime = Strict
for name in ("resource", "fcntl", "termios", "pwd", "grp"):
    sys.modules[name] = None
# Text files have another encoding there, unless it is given.
warnings.filterwarnings("error", category=EncodingWarning, module=r"(pgmkit|mechanisms)\b")

from mechanisms.cli import main

os.environ["PGMKIT_TRACEBACK"] = "1"
with open("people.csv", "w", encoding="utf-8") as file:
    file.write("age,town,day\n" + "31,Köln,3.12.2001\n57,Bonn,17.2.2001\n44,Köln,9.9.2001\n" * 200)
for words in (
    "demo --rows 300 --out demo.csv",
    "schema draft people.csv --assume-public -o people.yaml",
    "plan --schema people.yaml --rows 600 --epsilon 5 --delta 1e-6",
    "synth people.csv --schema people.yaml --epsilon 5 --delta 1e-6"
    " --out synth.csv --save people.pgm --report report.html",
    "query people.pgm town",
    "sample people.pgm --rows 5 --out again.csv",
):
    try:
        main(words.split())
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
assert "Köln" in open("synth.csv", encoding="utf-8").read()
print("all ran")
"""


def test_the_main_jobs_need_nothing_that_only_unix_has(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("all ran\n"), done.stdout + done.stderr


def test_a_shown_command_is_quoted_for_the_shell_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [shell_word(text) for text in ("a.pgm", "a b")] == ["a.pgm", "'a b'"]
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        for text in ("a b", 'a "b" c', "a b\\", 'a\\" b', "it's mine"):
            assert shell_word(text) == subprocess.list2cmdline([text])
        assert shell_word(r"C:\people.pgm") == r"C:\people.pgm"
        # Signs that end or join commands are quoted, too, and so is a text without any sign.
        assert [shell_word(text) for text in ("a&b", ";", "")] == ['"a&b"', '";"', '""']


def test_signs_that_the_output_does_not_have_end_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows the output to a file or a program has no Polish letters: a run that had spent its
    budget ended in an error inside pgmkit.
    """
    monkeypatch.chdir(tmp_path)
    Path("u.csv").write_text("Łódź,n\n" + "日,1\nł,2\n" * 100, encoding="utf-8")
    run = CliRunner(charset="cp1252").invoke
    shown = run(main, ["schema", "draft", "u.csv", "--assume-public"])
    assert shown.exit_code == 2 and "encoding, cp1252, does not have" in shown.stderr
    for words in (
        "schema draft u.csv --assume-public -o u.yaml",
        "synth u.csv --schema u.yaml --epsilon 9 --delta 1e-6 --mechanism mst --yes --save u.pgm",
        "query u.pgm Łódź",
    ):
        said = run(main, words.split())
        assert said.exit_code == 0 and "\\u0141ód\\u017a" in said.stdout, said.output
    assert "Łódź:" in Path("u.yaml").read_text(encoding="utf-8")


def test_a_byte_order_mark_that_an_editor_adds_is_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Editors of Windows begin files in UTF-8 with it."""
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "s.json": '{"sex": 2}',
        "t.json": '[{"columns": ["sex"], "values": [9, 4], "stddev": 1}]',
    }.items():
        Path(name).write_text(content, encoding="utf-8-sig")
    said = CliRunner().invoke(main, ["estimate", "t.json", "--schema", "s.json", "--out", "m.pgm"])
    assert said.exit_code == 0, said.output
