"""Condition 5 of the paper, the one on the network: decided here, and asked for by every report."""

from __future__ import annotations

from dataclasses import dataclass

from adfl_stats._text import factor_text
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule, one_network
from adfl_stats.theory.checks import FAILS, HOLDS, UNKNOWN, decided

__all__ = ["Condition5", "below_1", "condition_5"]

# Ours: numbers within this of 1 are 1 up to rounding; where W is doubly stochastic its graph decides instead.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Condition5:
    """``rho = ||W'(I - 11'/M)W|| + SE(W) < 1``: its terms and whether it holds.

    Attributes
    ----------
    mixing, se : float
        The two terms of rho.
    status : {"holds", "fails", "unknown"}
        Whether rho is below 1; "unknown" where the norm could not be resolved and its lower bound is below 1.
    mixing_status : {"holds", "fails", "unknown"}
        The same for the norm alone.
    trouble : str
        Why the norm could not be resolved; "" where it was. `mixing` and `rho` are then lower bounds.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> from adfl_stats.theory.condition_5 import condition_5
    >>> report = condition_5(ad.networks.directed_circle(100, 5))
    >>> report.status, report.rho < 1.0
    ('holds', True)
    """

    mixing: float
    se: float
    status: str
    mixing_status: str
    trouble: str = ""

    @property
    def rho(self) -> float:
        """The sum of the two terms, 1 exactly where it is 1 up to rounding."""
        rho = self.mixing + self.se
        return 1.0 if abs(rho - 1.0) < ROUNDING else rho

    @property
    def rho_text(self) -> str:
        """The value of rho, as all reports have it, after ">=" where it is a lower bound."""
        return f">= {factor_text(self.rho)}" if self.trouble else factor_text(self.rho)


def condition_5(network: Network | NetworkSchedule) -> Condition5:
    """Decide Condition 5 of the paper for a network.

    For a doubly stochastic W the graph decides, without rounding error: rho is below 1 if and only if the
    clients cannot be partitioned so that no client listens to two parts (`Network.rows_overlap`).

    Parameters
    ----------
    network : Network
        Any network. A schedule is refused: its rounds have no common W.

    Returns
    -------
    Condition5
        Its `status` is the answer that `check_network`, `Results.check`, `Results.summary` and the command line
        give.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> condition_5(ad.networks.directed_circle(100, 5)).status
    'holds'
    >>> condition_5(ad.networks.central_client(5)).status
    'fails'
    """
    network = one_network(network, "Condition 5, a bound on the norm of W,")
    estimate, se = network.mixing_estimate, network.se
    if network.is_doubly_stochastic:
        status = mixing_status = decided(network.rows_overlap)
    else:
        mixing_status = below_1(estimate.value, bool(estimate.trouble))
        status = below_1(estimate.value + se, bool(estimate.trouble))
    return Condition5(estimate.value, se, status, mixing_status, estimate.trouble)


def below_1(value: float, is_lower_bound: bool) -> str:
    """Return whether a value, or what it is a lower bound of, is below 1 beyond rounding."""
    if value >= 1.0 - ROUNDING:
        return FAILS
    return UNKNOWN if is_lower_bound else HOLDS
