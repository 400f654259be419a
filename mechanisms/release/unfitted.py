"""A stand-in for the model of a release that has none yet."""

from __future__ import annotations

from typing import Any, NoReturn

from pgmkit import Domain, InvalidInput
from pgmkit.runtime.untrusted import LARGEST, FilePath, read_container, refusing, write_container


class Unfitted:
    """A stand-in for the model in the release of a run that did not end. It raises InvalidInput
    whenever an answer or records are asked for.

    `public_total`: the number of records if it is public, otherwise None. `total` is the same
    number, or 1 if it is None, since a model has some total.
    """

    format = "pgmkit unfinished run"

    def __init__(self, domain: Domain, public_total: float | None) -> None:
        self.domain, self.public_total = domain, public_total
        self.total = 1.0 if public_total is None else public_total

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidInput(
            "the run did not end, so its release has noisy tables but no model yet; `pgmkit "
            "estimate FILE --out NEW`, in Python `release.estimated()`, makes one at no cost"
        )

    marginal = marginals = answer = sample = given = _refused

    def save(self, path: FilePath) -> None:
        """Write the domain and `public_total` to one file, completely or not at all."""
        header = {"domain": dict(self.domain.sizes), "total": self.public_total}
        write_container(path, self.format, header, {})

    @classmethod
    def load(cls, path: FilePath, *, max_bytes: int = LARGEST) -> Unfitted:
        """Read what `save` wrote. Raises InvalidInput for any other file, and for one that would
        expand to more than `max_bytes`.
        """
        with refusing(path, f"a {cls.format} file"):
            header, _ = read_container(path, cls.format, max_bytes)
            total = header["total"]
            return cls(Domain(dict(header["domain"])), None if total is None else float(total))
