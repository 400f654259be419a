"""The limits of control groups, in files like those of Linux."""

from pathlib import Path

import pytest

from pgmkit import memory


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
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "none")
    monkeypatch.setattr(memory, "_MOUNTED", tmp_path / "nothing")
    machine = memory.available()
    monkeypatch.setattr(memory, "_GROUPS", listed)
    monkeypatch.setattr(memory, "_MOUNTED", mounted)
    assert memory.available() == (machine if expected is None else expected)
