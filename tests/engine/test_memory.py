"""The limits of control groups, in files like those of Linux."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pgmkit import ModelTooLarge
from pgmkit.runtime import memory


@pytest.mark.parametrize(
    ("groups", "file", "text", "expected"),
    [
        ("0::/jobs/one", "memory.max", "1000000", 1_000_000),
        ("0::/jobs/one", "jobs/one/memory.max", "2000000", 2_000_000),
        ("0::/jobs/one", "jobs/memory.max", "3000000", 3_000_000),
        ("4:memory:/jobs", "memory/memory.limit_in_bytes", "4000000", 4_000_000),
        ("4:cpu,memory:/jobs", "memory/jobs/memory.limit_in_bytes", "5000000", 5_000_000),
        ("4:cpu:/jobs", "jobs/memory.max", "6000000", None),
        ("0::/jobs", "jobs/memory.max", "max", None),
    ],
)
def test_limits_of_groups(
    groups: str,
    file: str,
    text: str,
    expected: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed, mounted = tmp_path / "cgroup", tmp_path / "mounted"
    limit = mounted / file
    limit.parent.mkdir(parents=True)
    limit.write_text(text + "\n")
    listed.write_text(f"{groups}\n9:name=systemd:/\n")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "none")
    monkeypatch.setattr(memory, "MOUNTED", tmp_path / "nothing")
    machine = memory.available()
    monkeypatch.setattr(memory, "GROUPS", listed)
    monkeypatch.setattr(memory, "MOUNTED", mounted)
    assert memory.available() == (machine if expected is None else expected)


@pytest.mark.parametrize(
    ("version", "files", "left"),
    [
        ("0::/", {"memory.max": "9000", "memory.current": "5000"}, 4000),
        (
            "0::/",
            {
                "memory.max": "9000",
                "memory.current": "5000",
                "memory.stat": "anon 2000\ninactive_file 3000\n",
            },
            7000,
        ),
        (
            "4:memory:/",
            {
                "memory/memory.limit_in_bytes": "9000",
                "memory/memory.usage_in_bytes": "8000",
                "memory/memory.stat": "total_inactive_file 500\n",
            },
            1500,
        ),
        ("0::/", {"memory.max": "9000", "memory.current": "10000"}, 0),
        (
            "0::/",
            {"memory.max": "9000", "memory.current": "5000", "memory.stat": "anon 2000\n"},
            4000,
        ),
    ],
)
def test_room_is_what_a_group_has_left(
    version: str,
    files: dict[str, str],
    left: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "cgroup").write_text(version)
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "MOUNTED", tmp_path)
    assert memory.room() == left


def test_room_is_what_the_address_space_and_the_machine_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MOUNTED", tmp_path / "none")
    process = SimpleNamespace(vms=3000 << 10)
    free = SimpleNamespace(total=9000 << 10, available=4000 << 10)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: process)
    assert memory.room() == 4000 << 10
    monkeypatch.setattr(memory, "address_space", lambda: 5000 << 10)
    assert memory.room() == 2000 << 10
    with pytest.raises(ModelTooLarge, match="left to this process; write less, or give it more"):
        memory.check_room(1 << 40, "the answer", remedy="write less")
    memory.check_room(1 << 40, "the answer", held=1 << 40)
    with pytest.raises(ModelTooLarge, match="the answer needs 100 bytes at once; the limit is 99"):
        memory.check_room(100, "the answer", limit=99)


def test_the_most_memory_held_is_that_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux counts the peak in its own way, beside the memory that is held now. It shortens the
    program's name to 15 bytes, wherever a letter ends.
    """
    assert memory.peak() >= psutil.Process().memory_info().rss // 2
    (tmp_path / "status").write_bytes(b"Name:\tauswertung_gr\xc3\nVmHWM:\t    7 kB\n")
    monkeypatch.setattr(memory, "PROCESS", tmp_path / "status")
    assert memory.peak() == 7 << 10
