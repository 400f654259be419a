"""The pinned versions resolve on machines other than this one, against the package index alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OFFLINE = ("Failed to fetch", "Could not connect", "dns error", "error sending request")
PLATFORMS = [
    "x86_64-manylinux_2_28",
    "aarch64-manylinux_2_28",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
]
# torch's wheels for macOS ask for version 14; uv assumes 13 unless told.
ENVIRONMENT = {"MACOSX_DEPLOYMENT_TARGET": "14.0"}


def resolve(*options: str) -> str:
    """Resolves pyproject.toml under constraints.txt without installing anything.

    A folder of local wheels would hide what other machines meet, so uv gets none: it does not
    read pip's settings, and its own are switched off.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet"]
    done = subprocess.run(
        [*command, "-c", "constraints.txt", "pyproject.toml", *options],
        cwd=ROOT,
        env=kept | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode and any(sign in done.stderr for sign in OFFLINE):
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_extra_resolves_on_every_system() -> None:
    # A universal resolution holds for this version of Python and for all later ones.
    found = resolve("--universal", "--all-extras", "--python-version", "3.11.0")
    assert "\ntorch==" in found and "triton==" in found


@pytest.mark.slow  # Each resolution asks the index again, for about eight seconds.
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14", "3.15"])
def test_what_a_user_installs_has_wheels(platform: str, python: str) -> None:
    extras = [f"--extra={name}" for name in ("fast", "gpu", "report", "files")]
    where = ["--python-platform", platform, "--python-version", python]
    resolve("--only-binary", ":all:", *where, *extras)
