"""The report on a network: Condition 5, spectrum, structure, influence and neighbourhoods."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adfl_stats._arguments import listing
from adfl_stats._text import counted
from adfl_stats._types import Ints
from adfl_stats.network.matching import as_network
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import one_network
from adfl_stats.theory.checks import FAILS, HOLDS, INDICATIVE, UNKNOWN, Check, Report, decided
from adfl_stats.theory.condition_5 import Condition5, condition_5
from adfl_stats.theory.network_repairs import repair_advice, repair_table

if TYPE_CHECKING:
    import networkx

__all__ = ["check_network"]


def check_network(net: Network | networkx.Graph) -> Report:
    """Check a network against Condition 5 of the paper, and list what would improve it.

    Condition 5 demands ``rho = ||W'(I - 11'/M)W|| + SE(W) < 1``. The paper remarks that it "is automatically
    satisfied if W is an irreducible doubly stochastic matrix". That is not so: the directed circle of in-degree 1
    and the undirected ring of even length are counterexamples, with rho = 1. For doubly stochastic W it holds if
    and only if the clients cannot be partitioned so that no client listens to two parts, which is how it is
    decided here for such W, without rounding error.

    The condition is sufficient for Proposition 1, not necessary for a fit to work: on a strongly connected
    network without a period, small steps lead to consensus, and steps balanced by the clients' influence
    lead to the estimate of the pooled data, also where rho exceeds 1.

    Parameters
    ----------
    net : Network or networkx graph
        Any network; in a graph an edge u -> v means that v receives from u. The work and the memory grow with the
        number of edges.

    Returns
    -------
    Report
        Its checks are named ``SE(W)``, ``mixing``, ``rho``, ``second eigenvalue modulus``, ``spectral gap``,
        ``mixing time``, ``strongly connected``, ``closed groups``, ``period``, ``doubly stochastic``,
        ``in-degree spread``, ``out-degree spread``, ``clients with influence zero``, ``effective clients`` and
        ``neighbourhood majorities``; its tables "Repairs" and "Tolerated abnormal neighbours".

    Examples
    --------
    >>> report = check_network(Network.from_adjacency([[0, 1, 0], [0, 0, 1], [1, 0, 0]]))
    >>> report["rho"].status, report["period"].value
    ('fails', 3.0)
    """
    net = one_network(as_network(net, "net"), "check_network")
    influence_trouble = _influence_trouble(net)
    condition = condition_5(net)
    checks = (
        *_condition_5(net, condition),
        *_eigenvalue(net),
        *_structure(net),
        *_degrees(net),
        *_influence(net, influence_trouble),
        _majorities(net),
    )
    repairs = repair_table(net)
    return Report(
        f"Network of {net.n_clients} clients and {net.n_edges} edges",
        checks,
        advice=repair_advice(net, repairs, condition.status),
        tables={"Repairs": repairs, "Tolerated abnormal neighbours": _majority_table(net)},
        network=net,
    )


# ---------------------------------------------------------------------- Condition 5


def _condition_5(net: Network, condition: Condition5) -> list[Check]:
    balance = "W is doubly stochastic."
    if not net.is_doubly_stochastic:
        balance = (
            "W is not doubly stochastic. Where Condition 5 holds, Proposition 1 leaves plain DFL an error of order "
            "SE(W) against the pooled estimate, and wants step + SE(W) = o(1/N). Where all clients have influence, "
            "steps balanced by it remove this error to first order."
        )
    trouble = f" Not resolved: {condition.trouble}; the value is a lower bound." if condition.trouble else ""
    balanced = HOLDS if net.is_doubly_stochastic else INDICATIVE
    return [
        Check("SE(W)", "Section 3.2", condition.se, "0, or o(1/N)", balanced, balance),
        Check(
            "mixing", "Condition 5", condition.mixing, "< 1", condition.mixing_status,
            f"||W'(I - 11'/M)W||: the largest factor by which one round can multiply the sum of squares of the "
            f"clients' distances from their mean.{_growth(condition.mixing)}{trouble}",
        ),
        Check(
            "rho", "Condition 5", condition.rho, "< 1", condition.status, _rho_note(net, condition.status) + trouble
        ),
    ]  # fmt: skip


def _growth(mixing: float) -> str:
    return " Above 1 it can grow in a round, though it may shrink over many." if mixing > 1.0 + 1e-12 else ""


def _rho_note(net: Network, status: str) -> str:
    if status == HOLDS and not net.is_strongly_connected:
        return (
            "mixing + SE(W). It bounds the clients' disagreement, not their influence: the network is not strongly "
            "connected."
        )
    if status == HOLDS:
        return "mixing + SE(W)."
    if status == UNKNOWN:
        return "mixing + SE(W), where the mixing could not be resolved."
    if net.is_doubly_stochastic and net.is_strongly_connected:
        return (
            "W is irreducible and doubly stochastic, but rho = 1: the clients can be partitioned so that no client "
            "listens to two parts. The paper's remark that Condition 5 is automatically satisfied here is too general; "
            "the circle of in-degree 1 and the even ring are counterexamples."
        )
    if net.is_strongly_connected and net.period == 1:
        return (
            "mixing + SE(W). The condition is sufficient, not necessary: the network is strongly connected without a "
            "period, so that disagreement still tends to zero; the bound of Proposition 1 does not apply."
        )
    return "mixing + SE(W)."


# ---------------------------------------------------------------------- asymptotic rate


def _eigenvalue(net: Network) -> list[Check]:
    second = net.second_eigenvalue_estimate
    settles = int(net.communicating_classes[1].sum()) == 1 and net.period == 1
    status = UNKNOWN if second.trouble else decided(settles)
    note = "Over all eigenvalues of W but one 1; the asymptotic factor by which disagreement shrinks in a round."
    if second.trouble:
        note += f" Not resolved: {second.trouble}."
        note += " It is below 1, as there is one closed group without a period." if settles else ""
    time = mixing_time(second.value)
    return [
        Check("second eigenvalue modulus", "", second.value, "< 1", status, note),
        Check("spectral gap", "", 1.0 - second.value, "> 0", status, "1 - second eigenvalue modulus."),
        Check(
            "mixing time",
            "",
            time,
            "finite",
            status,
            "Rounds in which disagreement shrinks by the factor e, in the long run.",
        ),
    ]


def mixing_time(modulus: float) -> float:
    """Return ``1 / (-log(modulus))``: 0 if all agree after one round, infinite if they never do."""
    if modulus <= 0.0:
        return 0.0
    return math.inf if modulus >= 1.0 else -1.0 / math.log(modulus)


# ---------------------------------------------------------------------- structure


def _structure(net: Network) -> list[Check]:
    groups = net.closed_groups
    parts = len(net.communicating_classes[1])
    within = sum(map(len, groups))
    connected = "Each client reaches every other." if parts == 1 else f"There are {parts} strongly connected parts."
    if len(groups) == 1 and within < net.n_clients:
        named = listing(groups[0])
        closed = f"All clients converge to {counted(within)}, {named}, who receive from no other."
    elif len(groups) == 1:
        closed = "All clients together."
    else:
        closed = f"No consensus: no group receives from outside. The first: {listing(groups[0])}."
    alone = [group[0] for group in groups if len(group) == 1]
    if alone and net.n_clients > 1:
        closed += f" Absorbing, as they receive from themselves only: {listing(alone)}."
    period = net.period
    excess = float(np.abs(net.column_excess).max())
    cyclic = (
        "Powers of W converge on each closed group."
        if period == 1
        else f"Powers of W are periodic with period {period}, so that Condition 5 fails; net.lazy() has period 1."
    )
    stochastic = f"Columns of W sum to 1 within {excess:.3g}. The paper does not demand it."
    return [
        Check(
            "strongly connected", "", float(parts == 1), "1, not demanded",
            HOLDS if parts == 1 else INDICATIVE, connected,
        ),
        Check("closed groups", "", float(len(groups)), "1", decided(len(groups) == 1), closed),
        Check("period", "", float(period) if period < 10**300 else math.inf, "1", decided(period == 1), cyclic),
        Check(
            "doubly stochastic", "Section 3.2", float(net.is_doubly_stochastic), "1, not demanded",
            HOLDS if net.is_doubly_stochastic else INDICATIVE, stochastic,
        ),
    ]  # fmt: skip


def _degrees(net: Network) -> list[Check]:
    checks = []
    for name, degree in (("in-degree spread", net.in_degree), ("out-degree spread", net.out_degree)):
        low, high, mean = int(degree.min()), int(degree.max()), float(degree.mean())
        spread = high / low if low else math.inf
        note = f"Largest over smallest: {low} to {high}, mean {mean:.3g}"
        note += ", each client with itself." if net.W.diagonal().all() else "."
        if low == 0:
            note += f" {counted(int((degree == 0).sum()), 'has', 'have')} out-degree 0."
        checks.append(Check(name, "", spread, "1 if even", HOLDS if low == high else INDICATIVE, note))
    return checks


# ---------------------------------------------------------------------- influence


def _influence_trouble(net: Network) -> str:
    """Compute the influence and return the warnings of its computation."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _ = net.influence
    return "; ".join(str(warning.message) for warning in caught)


def _influence(net: Network, trouble: str) -> list[Check]:
    unheard = net.unheard
    names = "All clients have influence."
    if len(unheard):
        names = (
            f"Influence zero: {listing(unheard)}. No member of a closed group receives from them, directly or over "
            "others, so that their data do not count in the limit, whatever the steps. Let a member listen to them."
        )
    effective, M = net.effective_clients, net.n_clients
    lost = 1.0 - effective / M
    if net.is_doubly_stochastic:
        note = "All clients have the same influence."
    else:
        note = (
            f"1 / sum pi^2, pi being the influence. Plain DFL with small steps loses about {lost:.1%} of efficiency on "
            "clients that are alike, 1 - 1/(M sum pi^2)"
        )
        note += (
            ", and no steps can recover the data of clients with influence zero."
            if len(unheard)
            else "; steps balanced by influence, step_m = step / (M pi_m) but at most fifty times the step, lose "
            f"{1.0 - net.balanced_efficiency:.1%} to first order."
        )
    status = HOLDS if net.is_doubly_stochastic else INDICATIVE
    if len(net.closed_groups) > 1:
        names = f"Each client's data count within its own group only; there are {len(net.closed_groups)}."
        status, note = FAILS, "Closed groups use only their own data; each has an estimate of its own."
    if trouble:
        status, note = UNKNOWN, f"{note} Not resolved: {trouble}."
    return [
        Check("clients with influence zero", "", float(len(unheard)), "0", decided(not len(unheard)), names),
        Check("effective clients", "", effective, f"{M}", status, note),
    ]


# ---------------------------------------------------------------------- neighbourhoods


def _tolerances(net: Network) -> dict[str, Ints]:
    """Return how many abnormal in-neighbours each client tolerates under the rules of BRIDGE.

    The median over the client and its d in-neighbours needs a majority of normal values among the d + 1; the trimmed
    mean drops b on each side of the neighbours' values, and needs ``d >= 2b + 1``.
    """
    row = np.repeat(np.arange(net.n_clients), np.diff(net.indptr))
    others = np.bincount(row[row != net.indices], minlength=net.n_clients).astype(np.int64)
    return {"median": others // 2, "trimmed mean": np.maximum(others - 1, 0) // 2}


def _majorities(net: Network) -> Check:
    median, trimmed = _tolerances(net).values()
    least = int(median.min())
    note = (
        f"Abnormal neighbours that a client tolerates under the median of itself and its neighbours: {least} at least, "
        f"{np.median(median):g} in the median, {median.max()} at most; under the trimmed mean {trimmed.min()}, "
        f"{np.median(trimmed):g} and {trimmed.max()}. Only rules of BRIDGE's kind need this; aDFL does not."
    )
    if net.n_clients == 1:
        return Check("neighbourhood majorities", "", 0.0, "any", HOLDS, "One client has no neighbours.")
    if least == 0:
        weak = net.labels[median == 0]
        note += f" {counted(len(weak), 'does', 'do')} not tolerate one: {listing(weak)}."
    # Not demanded by aDFL; and the number of abnormal neighbours is not known, so that one may not be enough.
    return Check("neighbourhood majorities", "", float(least), "not for aDFL", INDICATIVE, note)


def _majority_table(net: Network) -> pd.DataFrame:
    levels = {"least": 0.0, "5 %": 0.05, "25 %": 0.25, "50 %": 0.5, "75 %": 0.75, "most": 1.0}
    rows = {
        rule: np.quantile(values, list(levels.values()), method="lower") for rule, values in _tolerances(net).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(levels))
