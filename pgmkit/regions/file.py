"""Region models as files: numpy's zip of arrays, without pickle. A model is read back bit for bit,
but without its measurements, which are not in the file.

The joint distribution is not in the file. The tables, variances and zeros in the file determine it,
and it is fitted again when it is needed.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.runtime.untrusted import FilePath, read_container, refusing, write_container
from pgmkit.structural_zeros import Zeros, check_zeros

FORMAT = "pgmkit region model"
_NUMBERS = ("total", "loss", "gap", "unit", "bound", "weight", "penalty")


def write_regions(fields: dict[str, Any], path: FilePath) -> None:
    """Write a model's ``fields``, without its measurements, to a file, completely or not at all."""
    tables, zeros = fields["tables"], fields["zeros"]
    header = {
        "domain": list(fields["domain"].sizes.items()),
        "regions": list(tables),
        "zeros": [each.clique for each in zeros],
        "certified": fields["certified"],
        "iterations": fields["iterations"],
        "stopped": fields["stopped"],
    }
    arrays = {f"table{i}": table for i, table in enumerate(tables.values())}
    arrays |= {f"allowed{i}": each.allowed for i, each in enumerate(zeros)}
    arrays["variances"] = np.array([fields["variances"][clique] for clique in tables])
    arrays["numbers"] = np.array([fields[name] for name in _NUMBERS])
    write_container(path, FORMAT, header, arrays)


def read_regions(path: FilePath, max_bytes: int) -> dict[str, Any]:
    """Return the fields that ``write_regions`` wrote. Raises ``InvalidInput`` for any other file
    and for one that would expand to more than ``max_bytes``.
    """
    with refusing(path, "a file of a region model"):
        header, arrays = read_container(path, FORMAT, max_bytes)
        domain = Domain({name: size for name, size in header["domain"]})
        cliques = [domain.clique(clique) for clique in header["regions"]]
        numbers = dict(zip(_NUMBERS, arrays["numbers"].tolist(), strict=True))
        variances = arrays["variances"].tolist()
        tables = {
            clique: _table(arrays[f"table{i}"], domain.shape(clique))
            for i, clique in enumerate(cliques)
        }
        if not 0 < numbers["total"] < inf:
            raise InvalidInput(f"its total is {numbers['total']!r}, not a finite number above 0")
        if not variances or not all(each > 0 for each in variances):
            raise InvalidInput("it has a variance that is not above 0, or no region")
        if any(value != value for value in numbers.values()) or not numbers["unit"] > 0:
            raise InvalidInput("it has a number that is NaN, or a unit that is not above 0")
        zeros = [
            Zeros(tuple(clique), arrays[f"allowed{i}"]) for i, clique in enumerate(header["zeros"])
        ]
        return {
            "domain": domain,
            "tables": tables,
            "variances": dict(zip(cliques, variances, strict=True)),
            "zeros": tuple(check_zeros(domain, zeros)),
            "certified": bool(header["certified"]),
            "iterations": int(header["iterations"]),
            "stopped": str(header["stopped"]),
            **numbers,
        }


def _table(values: Any, shape: tuple[int, ...]) -> Any:
    if values.dtype != np.float64 or values.shape != shape:
        raise InvalidInput(f"it has a table of {values.dtype} of shape {values.shape}, not {shape}")
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise InvalidInput("it has a table with cells below 0 or not finite")
    return values
