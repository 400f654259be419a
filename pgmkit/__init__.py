"""Marginal inference centred on graphical models: estimate from noisy marginals, query, sample.

The public names are those in ``__init__.pyi``; each is imported on first use, so that importing the
package does not import torch.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
