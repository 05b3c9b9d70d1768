"""Advice on step and rounds, the bottleneck, and the effect of repairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from adfl_stats._arguments import in_interval
from adfl_stats._text import number
from adfl_stats._types import Array
from adfl_stats.engine.problem import Problem
from adfl_stats.methods import DFL, Method
from adfl_stats.network.network import Network
from adfl_stats.theory.bottleneck import DATA, NETWORK, Bottleneck, bottleneck
from adfl_stats.theory.checks import FAILS, INDICATIVE, Check, Report, decided
from adfl_stats.theory.network_repairs import repairs
from adfl_stats.theory.outlook import BIAS_SHARE, Outlook, outlook

__all__ = ["Advice", "advisable", "advise_on"]


@dataclass(frozen=True, repr=False, kw_only=True)
class Advice(Report):
    """A report with the step and rounds that it recommends; made by `DecentralizedGLM.advise`.

    Parameters
    ----------
    title : str
        As in `Report`, like the four that follow.
    checks : tuple of Check
        Bias, safe step, imbalance, and the rate of agreement.
    advice : tuple of str
        What to do.
    tables : mapping of str to DataFrame
        What each repair would change.
    network : Network, optional
        The network that was asked about.
    step : float
        The largest step whose bias is below its share of the tolerance, and that is safe; NaN if none is.
    rounds : float
        Rounds from the usual start until the rest of the tolerance is reached.
    bias : float
        The error that the step leaves, optimisation plus consensus, in standard errors.
    imbalance : float
        How far what the network solves is from the solution that counts clients by trust and size only, in
        standard errors; no step changes it.
    bottleneck : {"network", "data", "neither"}
        What would save more rounds if it were perfect: a network that agrees in one round, or data with the same
        curvature in every direction and on every client; "neither" where both would leave three
        quarters of the rounds.
    rounds_if_mixing, rounds_if_conditioned : float
        These numbers of rounds.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3))
    >>> advice = model.advise()
    >>> advice.step < 1.0, advice.bias <= 0.05, advice["imbalance"].status
    (True, True, 'holds')
    """

    step: float
    rounds: float
    bias: float
    imbalance: float
    bottleneck: str
    rounds_if_mixing: float
    rounds_if_conditioned: float


def advisable(method: Method | None) -> Method:
    """Return a method of means and gradient steps, by default ``DFL()``; others are refused."""
    method = DFL() if method is None else method
    if not (isinstance(method, Method) and method.has_limit):
        raise TypeError(f"method is {method!r}; advice is for means and gradient steps: pass ad.DFL() or ad.ADFL()")
    return method


def advise_on(make: Callable[[Network], Problem], network: Network, method: Method, tolerance: float) -> Advice:
    """Recommend step and rounds.

    Parameters
    ----------
    make : callable
        Makes the problem on a given network.
    network : Network
        The network as it is.
    method : Method
        As `advisable` returns it. The weights of aDFL are not known before its fit: all clients count.
    tolerance : float
        Wanted numerical error, in standard errors.
    """
    tolerance = in_interval(tolerance, "tolerance", 0.0, np.inf, open_low=True)
    groups = len(network.closed_groups)
    if groups > 1:
        return _no_consensus(groups)
    problem = make(network)
    known = method.known_weights(problem.labels)
    weights = np.ones(problem.M) if known is None else known
    steps = problem.steps(weights, balance=method.balance)
    here = outlook(problem, steps, tolerance)
    limits = bottleneck(problem, steps, tolerance, here.rounds)
    table = _repairs(make, problem, weights, method.balance, tolerance, here)
    return Advice(
        title=_title(method),
        checks=_checks(problem, here, limits, tolerance),
        advice=(
            *_sentences(here, limits, table, tolerance),
            *(() if known is not None else (_unknown_weights(method),)),
        ),
        tables={"What a repair would change (exchanges: rounds times combine steps)": table},
        network=problem.network,
        step=here.step,
        rounds=here.rounds,
        bias=here.bias,
        imbalance=here.imbalance,
        bottleneck=limits.name,
        rounds_if_mixing=limits.perfect_network,
        rounds_if_conditioned=limits.perfect_data,
    )


# ---------------------------------------------------------------------- repairs


def _repairs(
    make: Callable[[Network], Problem],
    problem: Problem,
    weights: Array,
    balance: bool,
    tolerance: float,
    here: Outlook,
) -> pd.DataFrame:
    """Return one row per way to do it: step, rounds, exchanges, imbalance, exchanges saved, and a note."""
    rows: dict[str, list[object]] = {"as it is": [here.step, here.rounds, here.rounds, here.imbalance, 0.0, ""]}

    def add(name: str, outcome: Outlook, exchanges: int = 1) -> None:
        cost = outcome.rounds * exchanges
        rows[name] = [outcome.step, outcome.rounds, cost, outcome.imbalance, here.rounds - cost, ""]

    if not balance and not problem.network.is_doubly_stochastic:
        steps = problem.steps(weights, balance=True)
        add("ad.DFL(balance=True)", outlook(problem, steps, tolerance))
        before = outlook(problem, steps, tolerance, preconditioned=True)
        add("fit(ad.DFL(balance=True)) in rounds", replace(before, rounds=before.rounds_with_cuts))
    for repair in repairs(problem.network):
        network = repair.network
        # Two combine steps on a network with period 2 never mix its two parts.
        if not isinstance(network, str) and len(network.closed_groups) > 1:
            network = f"not possible: it leaves {len(network.closed_groups)} closed groups"
        if isinstance(network, str):
            rows[f"net.{repair.name}"] = [math.nan] * 5 + [network]
            continue
        other = make(network)
        add(f"net.{repair.name}", outlook(other, other.steps(weights, balance=balance), tolerance), repair.exchanges)
    before = outlook(problem, problem.steps(weights, balance=balance), tolerance, preconditioned=True)
    add("fit(method) in rounds", replace(before, rounds=before.rounds_with_cuts))
    return pd.DataFrame.from_dict(
        rows, orient="index", columns=["step", "rounds", "exchanges", "imbalance", "saved", "note"]
    )


# ---------------------------------------------------------------------- checks and advice


def _checks(problem: Problem, here: Outlook, limits: Bottleneck, tolerance: float) -> tuple[Check, ...]:
    share, rounds = f"<= {BIAS_SHARE * tolerance:.3g}", f"as it is {number(here.rounds)}"
    return (
        Check("bias of the step", "", here.bias, share, decided(here.bias <= BIAS_SHARE * tolerance),
              "Error of the limit at this step, in standard errors; rounds do not reduce it."),
        Check("safe step", "", here.safe, f">= {here.step:.3g}", decided(here.safe >= here.step),
              "One over the largest curvature of any client, its weight included: larger steps may diverge."),
        Check("imbalance", "", here.imbalance, f"<= {tolerance:.3g}", decided(here.imbalance <= tolerance),
              "Distance, in standard errors, from the solution that counts clients by trust and size only; "
              f"SE(W) = {problem.network.se:.3g}."),
        Check("1 - |lambda_2(W)|", "", here.gap, "-", INDICATIVE,
              "How fast clients agree in a round. Together they descend by step times the smallest curvature, "
              f"{here.pace:.2g}."),
        Check("rounds if the network were perfect", "", limits.perfect_network, rounds, INDICATIVE,
              "On a network that agrees in one round, W = 11'/M."),
        Check("rounds if the data were perfect", "", limits.perfect_data, rounds, INDICATIVE,
              "On this network, if all clients had one Hessian, and steps the coordinates in which it is the "
              "identity."),
    )  # fmt: skip


def _sentences(here: Outlook, limits: Bottleneck, table: pd.DataFrame, tolerance: float) -> Iterator[str]:
    if not math.isfinite(here.step):
        yield "No step has a bias within the tolerance; see the repairs, or allow a larger tolerance."
    else:
        yield (
            f"Use step={here.step:.3g} and rounds={here.rounds:.0f}: the fit then ends within {tolerance:g} standard "
            f"errors of what the network solves."
        )
        if here.step < 0.5 * here.safe:
            yield f"Stability alone would allow steps up to {here.safe:.3g}; their bias is above the tolerance. " + (
                "Most of it is each client's own last gradient step, which no network removes: cut the step towards "
                "the end, as fit() without a step does."
                if here.own > 0.5 * here.bias
                else "Most of it is slow agreement: a network that mixes faster allows larger steps."
            )
    yield from _on_bottleneck(here, limits, table)
    if here.imbalance > tolerance:
        yield (
            f"The network counts some clients more than others, which moves the estimate by {here.imbalance:.2g} "
            f"standard errors whatever the step; {_cures(table, tolerance)}."
        )
    yield from _cheapest(here, table, tolerance)


def _on_bottleneck(here: Outlook, limits: Bottleneck, table: pd.DataFrame) -> Iterator[str]:
    """Say what makes the run long, by how much, and what on this problem makes it shorter."""
    counts = (
        f"a network that agrees in one round would need {_count(limits.perfect_network)} rounds, perfectly conditioned "
        f"data on this network {_count(limits.perfect_data)}, as it is {_count(here.rounds)}."
    )
    if limits.name == NETWORK:
        yield f"The network is the bottleneck: {counts} {_better_network(here, table)}"
    elif limits.name == DATA:
        rescaled = float(table["exchanges"]["fit(method) in rounds"])
        yield f"The data are the bottleneck: {counts} " + (
            f"fit() without a step rescales the coordinates and cuts the step, and needs about {rescaled:.0f} rounds."
            if rescaled < here.rounds
            else "Rescaled coordinates would not need fewer rounds; a larger tolerance would."
        )
    else:
        yield f"Neither network nor data is a bottleneck: {counts} A larger tolerance, or cutting the step, helps."


def _better_network(here: Outlook, table: pd.DataFrame) -> str:
    """Return which change of the network needs the fewest exchanges, if one needs fewer; other steps are no such."""
    others = table["exchanges"][[str(name).startswith("net.") for name in table.index]].dropna()
    if others.empty or others.min() >= here.rounds:
        return "No change of weights in the table needs fewer exchanges; more neighbours may."
    return f"{others.idxmin()} needs the fewest exchanges of the changes of the network, {_count(others.min())}."


def _count(rounds: float) -> str:
    return f"about {rounds:.0f}" if math.isfinite(rounds) else "more than 10^12"


def _title(method: Method) -> str:
    """Return the title, with what the advice is about: a fit of the same data by another method needs other steps."""
    return f"Advice on step and rounds of {method.name}" + (" with balanced steps" if method.balance else "")


def _unknown_weights(method: Method) -> str:
    return (
        f"The weights of {method.name} are known after its fit only; here all clients count. For the last stage ask "
        "again with method=ad.DFL(weights=res.client_weights)."
    )


def _cheapest(here: Outlook, table: pd.DataFrame, tolerance: float) -> Iterator[str]:
    """Yield the change with the fewest exchanges; where the network is unbalanced, of those that cure that."""
    unbalanced = here.imbalance > tolerance
    others = table.iloc[1:]
    if unbalanced:
        others = others[others["imbalance"] <= tolerance]
    best = others["exchanges"].dropna().sort_values()
    if unbalanced and len(best):
        yield (
            f"Of the changes that remove the imbalance, {best.index[0]} needs the fewest exchanges with neighbours, "
            f"about {best.iloc[0]:.0f}; as it is, {here.rounds:.0f} lead to the estimate of an unbalanced network."
        )
    elif not unbalanced and best.iloc[0] < 0.9 * here.rounds:
        yield f"{best.index[0]} would need about {best.iloc[0]:.0f} exchanges with neighbours, not {here.rounds:.0f}."


def _no_consensus(groups: int) -> Advice:
    check = Check("closed groups", "Condition 5", float(groups), "1", FAILS, "No messages pass between them.")
    words = f"The network has {groups} closed groups: no step makes them agree. Add an edge between them, or fit each."
    return Advice(
        title="Advice on step and rounds",
        checks=(check,),
        advice=(words,),
        step=math.nan,
        rounds=math.inf,
        bias=math.inf,
        imbalance=math.nan,
        bottleneck=NETWORK,
        rounds_if_mixing=math.nan,
        rounds_if_conditioned=math.inf,
    )


def _cures(table: pd.DataFrame, tolerance: float) -> str:
    """Return which repairs remove the imbalance, as the table shows."""
    names = [str(name) for name in table.index[1:] if float(table["imbalance"][name]) <= tolerance]
    if not names:
        return "no repair in the table removes that"
    return f"{' or '.join(names)} would remove that"
