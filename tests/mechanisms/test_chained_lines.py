"""The lines of a ledger's file: their digests, worked out again here, and its one name."""

import errno
import hashlib
import json
import os
from pathlib import Path
from threading import Thread

import pytest

from mechanisms.privacy.chained_lines import ChainedLines
from pgmkit.errors import InvalidInput


def sealed(values: dict[str, object], before: str) -> tuple[bytes, str]:
    """A line as it is documented: the digest is that of the one before and of the plain values."""
    digest = hashlib.sha256(f"{before}\n{json.dumps(values)}".encode()).hexdigest()[:16]
    return (json.dumps({**values, "digest": digest}) + "\n").encode(), digest


def test_each_line_is_sealed_by_all_before_it(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = ChainedLines.create(path, {"a": 1})
    lines.append(lambda before: {"b": [len(before), True, None]})
    first, digest = sealed({"a": 1}, "")
    second, _ = sealed({"b": [1, True, None]}, digest)
    assert path.read_bytes() == first + second
    for number, content in ((1, first.replace(b"1", b"2", 1) + second), (2, first + first)):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=f"line {number} was changed"):
            lines.read()


def test_a_long_line_that_was_cut_short_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = ChainedLines.create(path, {"a": 1})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"cut": "' + b"x" * 1000)
    lines.append(lambda before: {"b": 2})
    assert lines.read() == [{"a": 1}, {"b": 2}]
    assert path.read_bytes().startswith(whole) and len(path.read_bytes()) < 200


def test_a_symbolic_link_stands_for_the_file_and_its_lock(tmp_path: Path) -> None:
    path, link = tmp_path / "lines", tmp_path / "link"
    ChainedLines.create(path, {"a": 1})
    link.symlink_to(path)
    lines = ChainedLines(link)
    assert lines.path == path.resolve()
    lines.append(lambda before: {"b": 2})
    assert not (tmp_path / "link.lock").exists()


def test_a_file_that_is_mounted_under_two_paths_has_one_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each path has a lock beside it, so that two containers spent 1.11 of a budget of 1. A hard
    link stands for the mount, for which a test would have to be root.
    """
    pytest.importorskip("fcntl")
    lines, other = ChainedLines.create(tmp_path / "lines", {"a": 1}), tmp_path / "other"
    os.link(lines.path, other)
    monkeypatch.setattr(ChainedLines, "_check_names", lambda self: None)
    waiting = Thread(target=ChainedLines(other).append, args=[lambda before: {"c": len(before)}])

    def meanwhile(before: object) -> dict[str, object]:
        waiting.start()
        waiting.join(0.2)
        return {"b": 2}

    lines.append(meanwhile)
    waiting.join()
    assert lines.read() == [{"a": 1}, {"b": 2}, {"c": 2}]


def test_what_the_system_refuses_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "lines", tmp_path / "other"
    lines = ChainedLines.create(path, {"a": 1})

    def refused(*names: object) -> None:
        raise OSError(errno.EPERM, "said by the system", *names[:1], None, *names[1:])

    with monkeypatch.context() as patch:
        patch.setattr("os.link", refused)
        with pytest.raises(InvalidInput, match="'.*other' cannot be begun.*said by the system"):
            ChainedLines.create(other, {"a": 1})
        patch.setattr("os.fsync", lambda _: refused())
        with pytest.raises(OSError, match="said by the system.*other"):
            ChainedLines.create(other, {"a": 1})
        with pytest.raises(OSError, match="said by the system.*lines"):
            lines.append(lambda _: {"b": 2})
    assert [*tmp_path.glob("*other*")] == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it lists open files")
def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        lines = ChainedLines.create(tmp_path / str(number), {"a": 1})
        lines.append(lambda _: {"b": 2})
        lines.read()
    assert len(os.listdir("/proc/self/fd")) < before + 20
