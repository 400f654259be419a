"""Differentially private mechanisms on top of pgmkit.

Mechanisms see private data only through a Curator, which meters every draw of noise. The public
names are those in ``__init__.pyi``; each is imported on first use.
"""

import lazy_loader

from pgmkit import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
