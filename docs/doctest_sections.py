"""An extension of griffe: doctests of docstrings become sections of examples on the site."""

import re
import textwrap
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
"""A doctest at the margin of a docstring ends with its paragraph."""


class DoctestSections(griffe.Extension):
    """Put every doctest below the heading under which griffe reads doctests."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Indent the doctests of one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(
                lambda found: "Examples:\n" + textwrap.indent(found[0], "    "),
                obj.docstring.value,
            )
