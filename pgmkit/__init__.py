"""Marginal inference centred on graphical models: estimate from noisy marginals, query, sample.

The public names are those in ``__init__.pyi``; each is imported on first use, so that importing the
package does not import torch.
"""

import sys

import lazy_loader

__version__ = "0.1.0"
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Import a public name. For a class of mbi, pgmpy or pyAgrum say what takes its place: in an
    ImportError for ``from pgmkit import ...``, which shows no text of an AttributeError.
    """
    instead = {
        "estimate": "FactoredInference MirrorDescent DualAveraging LBFGS",
        "Measurement": "LinearMeasurement marginal_loss",
        "GraphicalModel": "MarkovRandomField CliqueVector marginal_oracles",
        "FactorGraph": "BayesianNetwork DiscreteBayesianNetwork BayesNet TabularCPD "
        "MarkovNetwork DiscreteMarkovNetwork DiscreteFactor MarkovNet",
        "FactorGraph.posterior": "VariableElimination BeliefPropagation LazyPropagation "
        "ShaferShenoyInference",
        "pgmkit.bif.read_bif": "BIFReader XMLBIFReader loadBN",
        "mechanisms.synthesize": "Synthesizer TabularSynthesizer TabularConfig synthesize",
    }
    for ours, theirs in instead.items():
        if name in theirs.split():
            importing = sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap"
            error = ImportError if importing else AttributeError
            raise error(f"pgmkit has no {name}; use {ours} (see docs/migration.md)")
    return _public(name)
