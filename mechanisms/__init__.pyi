from .aim import Aim
from .baselines import Gaussian, Independent, Projection
from .clique_tree import CliqueTree
from .dispatch import run
from .dual_query import DualQuery, DualQueryLoss
from .fem import Fem
from .gem import Gem, GemPub
from .linked.link import Link
from .linked.pipeline import synthesize_linked
from .linked.release import LinkedRelease
from .linked.schema_file import load_linked_schema
from .matrix import Matrix, MatrixPgm
from .mixture import Mixture
from .mst import Mst
from .mwem import Mwem
from .mwem_pgm import MwemPgm
from .pair_graph import PairGraph
from .pep import Pep, PepPub
from .pmw_pub import PmwPub
from .privacy.budget import Budget
from .privacy.curator import Curator
from .privacy.ledger import BudgetExceeded, Ledger
from .privacy.neighbours import NEIGHBOURS
from .queries.cells import Cell
from .queries.predicates import (
    MeasuredPredicate,
    Predicate,
    Predicates,
    linear_thresholds,
    mixed_marginals,
)
from .rap import Rap, RapSoftmax
from .rap_pp import RapPlusPlus
from .registry import MECHANISMS, Entry, configure, register
from .release.evaluation import marginal_errors
from .release.record import Model, Release
from .release.report import Evaluation
from .release.tabular import TableRelease
from .rounds.loop import Round, adapt
from .synthesis.auto import Choice, choose_mechanism
from .synthesis.expected import expected_errors, least_epsilon
from .synthesis.open_columns import ColumnsFound
from .synthesis.pipeline import synthesize
from .synthesis.plan import Plan, plan
from .synthesis.questions import PlannedQuestion
from .workload import Workload, downward_closure, k_way, random_k_way, target_biased

__version__: str
__all__ = [
    "MECHANISMS",
    "NEIGHBOURS",
    "Aim",
    "Budget",
    "BudgetExceeded",
    "Cell",
    "Choice",
    "CliqueTree",
    "ColumnsFound",
    "Curator",
    "DualQuery",
    "DualQueryLoss",
    "Entry",
    "Evaluation",
    "Fem",
    "Gaussian",
    "Gem",
    "GemPub",
    "Independent",
    "Ledger",
    "Link",
    "LinkedRelease",
    "Matrix",
    "MatrixPgm",
    "MeasuredPredicate",
    "Mixture",
    "Model",
    "Mst",
    "Mwem",
    "MwemPgm",
    "PairGraph",
    "Pep",
    "PepPub",
    "Plan",
    "PlannedQuestion",
    "PmwPub",
    "Predicate",
    "Predicates",
    "Projection",
    "Rap",
    "RapPlusPlus",
    "RapSoftmax",
    "Release",
    "Round",
    "TableRelease",
    "Workload",
    "adapt",
    "choose_mechanism",
    "configure",
    "downward_closure",
    "expected_errors",
    "k_way",
    "least_epsilon",
    "linear_thresholds",
    "load_linked_schema",
    "marginal_errors",
    "mixed_marginals",
    "plan",
    "random_k_way",
    "register",
    "run",
    "synthesize",
    "synthesize_linked",
    "target_biased",
]
