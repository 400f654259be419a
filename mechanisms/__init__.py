"""Differentially private mechanisms on top of pgmkit.

Private data is touched only through a Curator, which meters every draw of noise.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechanisms.budget import Budget, BudgetExceeded, Ledger
    from mechanisms.curator import Curator
    from mechanisms.mwem_pgm import MwemPgm
    from mechanisms.registry import MECHANISMS, run
    from mechanisms.release import Release
    from mechanisms.synthesis import synthesize
    from mechanisms.table_release import TableRelease
    from mechanisms.workload import Workload

_HOMES = {
    "Budget": "budget",
    "BudgetExceeded": "budget",
    "Curator": "curator",
    "Ledger": "budget",
    "MECHANISMS": "registry",
    "MwemPgm": "mwem_pgm",
    "Release": "release",
    "TableRelease": "table_release",
    "Workload": "workload",
    "run": "registry",
    "synthesize": "synthesis",
}

__all__ = [
    "MECHANISMS",
    "Budget",
    "BudgetExceeded",
    "Curator",
    "Ledger",
    "MwemPgm",
    "Release",
    "TableRelease",
    "Workload",
    "run",
    "synthesize",
]


def __getattr__(name: str) -> Any:
    # Names are imported on first use: the command line must not pay for torch to print its help.
    if name in _HOMES:
        return getattr(import_module(f"mechanisms.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mechanisms' has no attribute {name!r}")
