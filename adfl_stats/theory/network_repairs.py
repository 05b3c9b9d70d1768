"""Repairs of a network: the effect of each change of weights, and which one to make."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from adfl_stats._arguments import listing
from adfl_stats._text import counted, factor_text, number
from adfl_stats.network import eigenvalues, spectrum
from adfl_stats.network.balance import ImpossibleRepairError
from adfl_stats.network.measures import SE_ROUNDING
from adfl_stats.network.network import Network
from adfl_stats.network.products import Products
from adfl_stats.theory.checks import FAILS, HOLDS, UNKNOWN
from adfl_stats.theory.condition_5 import below_1

__all__ = ["Repair", "condition_5_advice", "repair_advice", "repair_table", "repairs"]

AS_IS, STEPS = "as is", "balanced steps"
COLUMNS = ["rho", "SE(W)", "second eigenvalue modulus", "edges", "note"]
UNRESOLVED = "rho at least"
# Ours: smaller gains are rounding, or the error of rough eigenvalues.
GAIN = 1e-3
# Ours: a loss of efficiency below this is smaller than the digits that are shown.
SMALL_LOSS = 5e-4
# Ours: a rho below this is zero up to rounding.
NOTHING = 1e-12


@dataclass(frozen=True)
class Repair:
    """A change of a network's weights.

    Attributes
    ----------
    name : str
        How it is called, without the network's own name.
    make : callable
        Makes the repaired network; raises `ImpossibleRepairError` where the edges do not allow it.
    exchanges : int
        Combine steps in a round.
    """

    name: str
    make: Callable[[], Network]
    exchanges: int = 1

    @cached_property
    def network(self) -> Network | str:
        """The repaired network, or why the edges do not allow it."""
        try:
            return self.make()
        except ImpossibleRepairError as error:
            return f"not possible: {error.reason}"


def repairs(net: Network) -> Iterator[Repair]:
    """Yield the changes of weights that all reports look at, in the order of their tables."""
    yield Repair("metropolis()", net.metropolis)
    if not net.is_doubly_stochastic:
        balanced = Repair("balanced()", net.balanced)
        yield balanced
        if isinstance(balanced.network, str):
            # With self loops the edges always allow it on a strongly connected network.
            yield Repair("lazy(0.5).balanced()", lambda: net.lazy(0.5).balanced())
    yield Repair("lazy(0.5)", lambda: net.lazy(0.5))
    yield Repair("gossip(2)", lambda: net.gossip(2), exchanges=2)


def repair_table(net: Network) -> pd.DataFrame:
    """Return one row for each repair, and one for the network as it is.

    ``edges`` counts the messages of a round: gossip(2) sends over each edge twice. On large networks numbers
    of repairs are accurate to some four digits, which is enough to rank them. A repair that the edges do not
    allow has a note that says why, and no numbers.
    """
    second, se = net.second_eigenvalue_estimate, net.se
    rows: dict[str, list[object]] = {
        AS_IS: [net.mixing_estimate.value + se, se, second.value, net.n_edges, _doubt(net.mixing_estimate, second)]
    }
    # First, as the products that they share need not outlive them.
    own = _of_own_products(net)
    for repair in repairs(net):
        if repair.name in own:
            rows[repair.name] = own[repair.name]
        else:
            result = repair.network
            rows[repair.name] = _without_numbers(result) if isinstance(result, str) else _row(net, result)
    if not net.is_doubly_stochastic:
        rows[STEPS] = _balanced_steps(net, rows[AS_IS])
    table = pd.DataFrame.from_dict(rows, orient="index", columns=COLUMNS)
    return table.astype({"edges": "Int64"})


def _of_own_products(net: Network) -> dict[str, list[object]]:
    """Return the rows of lazy(0.5) and gossip(2), whose products are products with the network's own W."""
    products, second = net.products, net.second_eigenvalue_estimate
    lazily = _row(net, net.lazy(0.5), products.lazy(0.5))
    double = spectrum.mixing_norm(net, power=2, rough=True, products=products)
    excess = products.twice().backward(np.ones(net.n_clients)) - 1.0
    se = float(np.sqrt(np.mean(excess**2)))
    se = se if se > SE_ROUNDING else 0.0
    gossip = [double.value + se, se, second.value**2, 2 * net.n_edges, _doubt(double, second)]
    return {"lazy(0.5)": lazily, "gossip(2)": gossip}


def _balanced_steps(net: Network, as_is: list[object]) -> list[object]:
    if len(net.unheard):
        return _without_numbers(f"not possible: {counted(len(net.unheard), 'has', 'have')} influence zero")
    before, after = net.effective_clients / net.n_clients, net.balanced_efficiency
    gain = (
        f"efficiency of DFL from about {before:.3g} to {after:.3g}" if 1.0 - before > SMALL_LOSS else "little to gain"
    )
    return [*as_is[:4], f"W stays; {gain}"]


def _without_numbers(note: str) -> list[object]:
    return [math.nan, math.nan, math.nan, pd.NA, note]


def _row(net: Network, repaired: Network, lazily: Products | None = None) -> list[object]:
    """Return the numbers of a repaired network; for the lazy one, products with the network's own W serve."""
    large = repaired.n_clients > eigenvalues.DENSE
    symmetric = large and repaired.is_doubly_stochastic and repaired.asymmetry < 1e-10
    products = Products.of(repaired.csr, np.ones(net.n_clients)) if symmetric else lazily
    mixing = spectrum.mixing_norm(repaired, rough=True, products=products)
    right = net.second_eigenvalue_estimate.right
    if lazily is not None and right is not None and not net.second_eigenvalue_estimate.trouble:
        # Eigenvalues move to (1 + lambda)/2; none is negative then, so that the largest stays the largest.
        second = eigenvalues.ExtremeEigenvalue((1.0 + right) / 2.0)
    elif symmetric:
        second = eigenvalues.ExtremeEigenvalue(math.sqrt(mixing.value), mixing.trouble)
    else:
        second = eigenvalues.second_modulus(repaired, rough=True)
    se = repaired.se
    return [mixing.value + se, se, second.value, repaired.n_edges, _doubt(mixing, second)]


def _doubt(mixing: eigenvalues.ExtremeEigenvalue, second: eigenvalues.ExtremeEigenvalue) -> str:
    doubts = [UNRESOLVED] if mixing.trouble else []
    return "; ".join([*doubts, "eigenvalue about"] if second.trouble else doubts)


# ---------------------------------------------------------------------- advice


def repair_advice(net: Network, table: pd.DataFrame, condition_5: str) -> tuple[str, ...]:
    """Return what to do, most urgent first; `condition_5` is the status of the check on rho."""
    table = table[table["rho"].notna()]
    advice = list(_on_mixing(net, table, condition_5))
    if table["rho"].loc[AS_IS] > NOTHING:
        advice.append(_before_and_after(table))
    lost = 1.0 - net.effective_clients / net.n_clients
    if STEPS in table.index and lost > SMALL_LOSS:
        advice.append(
            "Balanced steps, step_m = step / (M pi_m), leave W as it is and remove the effect of imbalance to first "
            f"order: about {lost:.1%} of efficiency would be lost without, "
            f"{1.0 - net.balanced_efficiency:.1%} with them (no step grows more than fifty times)."
        )
    return tuple(advice)


def condition_5_advice(net: Network, condition_5: str) -> tuple[str, ...]:
    """Return what brings rho down on this network; `condition_5` is the status of the condition."""
    table = repair_table(net)
    return tuple(_on_mixing(net, table[table["rho"].notna()], condition_5))


def _on_mixing(net: Network, table: pd.DataFrame, condition_5: str) -> Iterator[str]:
    """Yield what keeps clients from consensus, and the change of weights that lowers rho most."""
    yield from _about_groups(net)
    yield from _about_period(net)
    if int(net.communicating_classes[1].sum()) == 1:
        yield _best_change(table, condition_5)


def _about_groups(net: Network) -> Iterator[str]:
    groups = net.closed_groups
    outside = net.n_clients - sum(map(len, groups))
    if len(groups) > 1:
        named = "; ".join(listing(group, most=3) for group in groups[:3]) + (", ..." if len(groups) > 3 else "")
        yield (
            f"The network has {len(groups)} closed groups (of {named}), which reach no consensus. "
            "No weights and no steps can change that: add edges between them, or fit the groups apart."
        )
    if outside:
        yield (
            f"{counted(outside, 'is', 'are')} transient, with influence zero. Let a member of "
            f"{'the closed group' if len(groups) == 1 else 'a closed group'} listen to them."
        )


def _about_period(net: Network) -> Iterator[str]:
    if net.period > 1:
        yield (
            f"The network has the period {net.period}: its powers do not converge, and Condition 5 fails. Weights on "
            "clients' own estimates, which metropolis() and lazy() give, end that."
        )


def _best_change(table: pd.DataFrame, condition_5: str) -> str:
    """Return the sentence on the change with the largest fall of rho; of equal ones, that with fewer edges."""
    rho = {str(name): float(value) for name, value in table["rho"].items()}
    edges = {str(name): int(value) for name, value in table["edges"].items()}
    before = rho[AS_IS]
    if before <= NOTHING:
        return "One round brings consensus: there is nothing to improve."
    others = [name for name in rho if name not in (AS_IS, STEPS)]
    least = min(rho[name] for name in others)
    # What counts is the fall of rho, and how much farther from 1 it gets.
    if least >= before - max(GAIN * min(before, abs(1.0 - least)), NOTHING):
        return "No change of weights lowers rho by much; more edges would."
    best = min((name for name in others if rho[name] <= least * (1.0 + 1e-9)), key=edges.__getitem__)
    cost = "with the same messages" if edges[best] <= edges[AS_IS] else f"with {edges[best]} messages a round"
    fall = f"from {factor_text(before)} to {factor_text(least)}"
    text = f"The single change that lowers rho most is net.{best}, {fall} {cost}."
    if condition_5 == FAILS:
        text += _condition_5_then(least, str(table["note"].loc[best]))
    cheaper = [name for name in others if edges[name] < edges[best] and rho[name] < min(1.0, before)]
    if condition_5 != HOLDS and cheaper:
        other = min(cheaper, key=rho.__getitem__)
        text += f" Without further messages, net.{other} brings it to {factor_text(rho[other])}."
    return text + " rho is what the paper's bounds have; model.advise() has the rounds that a fit would need."


def _condition_5_then(rho: float, note: str) -> str:
    """Return what becomes of Condition 5 at a repair's rho, which may be a lower bound."""
    words = {
        FAILS: " Condition 5 fails even so: add edges.",
        UNKNOWN: " Whether Condition 5 holds then is not resolved.",
        HOLDS: " Condition 5 holds then.",
    }
    return words[below_1(rho, UNRESOLVED in note)]


def _before_and_after(table: pd.DataFrame) -> str:
    """Return rho and SE(W) as they are and after each repair, in one sentence."""

    def pair(name: str) -> str:
        return f"{factor_text(table['rho'].loc[name])} and {number(table['SE(W)'].loc[name])}"

    after = "; ".join(f"net.{name} {pair(name)}" for name in table.index if name not in (AS_IS, STEPS))
    return f"rho and SE(W) are {pair(AS_IS)} now, and would be with {after}."
