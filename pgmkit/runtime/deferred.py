"""Torch, loaded when one of its names is first used.

Loading torch takes a second of processor time, more than most questions to a model. Modules that
are imported for such questions write ``from pgmkit.runtime.deferred import torch`` instead of
``import torch``; to a type checker the name is torch itself (``deferred.pyi``).
"""

import sys
from types import ModuleType
from typing import Any


class _OnUse(ModuleType):
    """A stand-in for torch that fetches each of its names when it is first used."""

    def __getattr__(self, name: str) -> Any:
        # Since Python 3.15 dataclasses look up the names in annotations, which need no torch.
        if sys._getframe(1).f_globals.get("__name__") == "dataclasses":
            raise AttributeError(name)
        import torch

        found = getattr(torch, name)
        setattr(self, name, found)
        return found


torch = _OnUse("torch")


def is_tensor(value: object) -> bool:
    """Return True for a torch tensor and False for all else, without loading torch."""
    return "torch" in sys.modules and isinstance(value, torch.Tensor)
