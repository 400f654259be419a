from . import bif, losses, queries, uai
from .approximate.posterior import ApproximatePosterior
from .conditioning.posterior import Posterior
from .conditioning.posteriors import Posteriors
from .domain import Domain
from .errors import (
    Contradictory,
    EngineFailed,
    FromRecords,
    InvalidInput,
    ModelTooLarge,
    NotCertified,
    NotMeasured,
    NumericalFailure,
    PgmkitError,
    TooSlow,
    TotalUndetermined,
)
from .estimation import estimate
from .estimation.many import estimate_many
from .factor import Factor
from .factor_graph import FactorGraph
from .graphs.junction_tree import JunctionTree
from .least_squares.goodness import Fit
from .linear.kronecker import Kronecker
from .measurement import Measurement
from .model import GraphicalModel
from .queries import FactoredQuery
from .records.dataset import Dataset
from .regions.model import RegionModel
from .runtime.progress import Replication
from .structural_zeros import Zeros
from .tables.columns import Column
from .tables.constraints import Constraint, Determines, Forbid, Require
from .tables.dates import Date, DateTime
from .tables.draft.draft import draft
from .tables.engines.frames import counts_of
from .tables.files.record_files import encode_file, write_file
from .tables.labelled import Boolean, Categorical, OpenCategorical
from .tables.levels import Level
from .tables.numbers import Integer, Numeric
from .tables.questions import ask
from .tables.reply import Reply
from .tables.schema import Schema
from .tables.schema_file import FileFormat
from .tables.weights import round_at_random
from .total import TotalEstimate, estimate_total
from .uncertainty import Interval, Uncertainty, error_bars

__version__: str
__all__ = [
    "ApproximatePosterior",
    "Boolean",
    "Categorical",
    "Column",
    "Constraint",
    "Contradictory",
    "Dataset",
    "Date",
    "DateTime",
    "Determines",
    "Domain",
    "EngineFailed",
    "Factor",
    "FactorGraph",
    "FactoredQuery",
    "FileFormat",
    "Fit",
    "Forbid",
    "FromRecords",
    "GraphicalModel",
    "Integer",
    "Interval",
    "InvalidInput",
    "JunctionTree",
    "Kronecker",
    "Level",
    "Measurement",
    "ModelTooLarge",
    "NotCertified",
    "NotMeasured",
    "Numeric",
    "NumericalFailure",
    "OpenCategorical",
    "PgmkitError",
    "Posterior",
    "Posteriors",
    "RegionModel",
    "Replication",
    "Reply",
    "Require",
    "Schema",
    "TooSlow",
    "TotalEstimate",
    "TotalUndetermined",
    "Uncertainty",
    "Zeros",
    "ask",
    "bif",
    "counts_of",
    "draft",
    "encode_file",
    "error_bars",
    "estimate",
    "estimate_many",
    "estimate_total",
    "losses",
    "queries",
    "round_at_random",
    "uai",
    "write_file",
]
