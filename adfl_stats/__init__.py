"""Adaptive decentralised federated learning for generalised linear models.

Start with `DecentralizedGLM`, `ClientData` and `Network`; `simulate` and `networks` make examples.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    from adfl_stats import _kernels as _kernels
except ImportError as error:  # pragma: no cover - only in a broken install
    raise ImportError(
        "adfl_stats cannot find its compiled kernel. Install the package with a C compiler at hand "
        "(pip install .); from a source folder use: pip install -e ."
    ) from error

from adfl_stats import datasets, losses, simulate, theory
from adfl_stats.data.client_data import ClientData
from adfl_stats.data.leverage import mallows
from adfl_stats.engine import attacks
from adfl_stats.engine.gossip import Gossip
from adfl_stats.engine.mpi import MPI
from adfl_stats.engine.rank_data import RankData
from adfl_stats.errors import (
    AdflWarning,
    ConditionWarning,
    ConvergenceWarning,
    DivergenceError,
    NetworkWarning,
    SelectionWarning,
    StorageError,
    StorageWarning,
)
from adfl_stats.inference.bootstrap import Bootstrap
from adfl_stats.inference.heterogeneity import Heterogeneity
from adfl_stats.inference.majority import Majority
from adfl_stats.inference.oracle import OracleComparison
from adfl_stats.inference.results import Results
from adfl_stats.inference.screening import Screening, screen
from adfl_stats.inference.sensitivity import Sensitivity
from adfl_stats.inference.storage import load
from adfl_stats.losses.any_loss import Losses
from adfl_stats.losses.families import Huber, family
from adfl_stats.losses.penalties import Ridge
from adfl_stats.methods import (
    ADFL,
    DFL,
    IOS,
    NNA,
    SLBRN,
    UBAR,
    Bridge,
    ClippedGossip,
    Extra,
    GeometricMedian,
    GradientTracking,
    Local,
    Method,
    Oracle,
    TrimmedScores,
)
from adfl_stats.model import DecentralizedGLM
from adfl_stats.network import generators as networks
from adfl_stats.network.network import Network
from adfl_stats.objective_model import DecentralizedModel
from adfl_stats.report import plots
from adfl_stats.report.efficiency import efficiency_report
from adfl_stats.report.start_sensitivity import compare_starts
from adfl_stats.simulate import study
from adfl_stats.simulate.resumable_study import Study
from adfl_stats.theory import check_network
from adfl_stats.theory.design import Design, design
from adfl_stats.trust.class_agreement import ClassAgreement, class_agreement

try:
    __version__ = version("adfl-stats")
except PackageNotFoundError:  # pragma: no cover - a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "ADFL",
    "DFL",
    "IOS",
    "MPI",
    "NNA",
    "SLBRN",
    "UBAR",
    "AdflWarning",
    "Bootstrap",
    "Bridge",
    "ClassAgreement",
    "ClientData",
    "ClippedGossip",
    "ConditionWarning",
    "ConvergenceWarning",
    "DecentralizedGLM",
    "DecentralizedModel",
    "Design",
    "DivergenceError",
    "Extra",
    "GeometricMedian",
    "Gossip",
    "GradientTracking",
    "Heterogeneity",
    "Huber",
    "Local",
    "Losses",
    "Majority",
    "Method",
    "Network",
    "NetworkWarning",
    "Oracle",
    "OracleComparison",
    "RankData",
    "Results",
    "Ridge",
    "Screening",
    "SelectionWarning",
    "Sensitivity",
    "StorageError",
    "StorageWarning",
    "Study",
    "TrimmedScores",
    "attacks",
    "check_network",
    "class_agreement",
    "compare_starts",
    "datasets",
    "design",
    "efficiency_report",
    "family",
    "load",
    "losses",
    "mallows",
    "networks",
    "plots",
    "screen",
    "simulate",
    "study",
    "theory",
]
