"""What a minority gains by chance among normal clients, from resampled rows, where it leads by little.

Prices hold for normal scores. Those of small clients are skewed where responses are rare or noise is, and a minority
gains more; a parametric bootstrap shows how much (see `resampling`), and the price is raised to that.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

import numpy as np

from adfl_stats._types import Mask
from adfl_stats.trust.candidates import GROSS_PRICE, MECHANISM_PRICE, Candidate, minority_price
from adfl_stats.trust.mixture import ClientScores, coherent_runs, gross_runs, mechanism_runs, normal_run
from adfl_stats.trust.spread import Spread

__all__ = ["Chance", "Resample"]

Resample: TypeAlias = Callable[[Spread], Iterator[ClientScores]]

# A corruption of known form that gains less, in twice the log-likelihood, is not checked. Ours: its price then decides
# anyway.
SLIGHT_GAIN = 2.0
# A minority whose criterion leads by less than this is checked by a parametric bootstrap. Ours: saves the
# bootstrap where the lead is large.
CHECKED_LEAD = 40.0
# Most bootstrap data sets, and standard deviations above their mean gain that a minority must reach. Ours: a
# normal approximation to the .999 quantile, which by itself would take thousands of data sets.
RESAMPLES, DEVIATIONS = 20, 3.0
# Data sets after which the bootstrap may end early, and errors of the bound by which it must be decided. Ours: a mean
# and a standard deviation of fewer are too variable, and two errors are the usual .95.
FIRST, SURE = 8, 2.0
# With a criterion this far behind, no price changes the choice: the minority's share in the averaged probabilities
# is below exp(-6).
BEHIND = 12.0


class Chance:
    """Prices of minorities, raised to what they gain by chance.

    Parameters
    ----------
    resample : callable or None
        Given a spread in the units of the scores, returns sets of scores of normal clients, without end.
        None where there is no bootstrap.
    before : Chance, optional
        That of an estimate close by, whose results are taken over: what is gained by chance hardly depends on it.
    """

    def __init__(self, resample: Resample | None = None, before: Chance | None = None) -> None:
        self._resample = resample
        self._raises: dict[tuple[bool, str], float] = {} if before is None else before._raises

    def on(self, some: Mask) -> Chance:
        """Return the same for some of the clients (M,)."""
        resample = self._resample
        return self if resample is None else Chance(lambda spread: (one.of(some) for one in resample(spread)), self)

    def raised(self, candidates: list[Candidate], behind: float) -> list[Candidate]:
        """Return the candidates, with higher prices of minorities where they lead by little.

        Minorities that are behind by more than `behind` are left as they are.
        """
        rival = min((one for one in candidates if not one.coherent), key=lambda one: one.criterion)
        leads = {}
        # With a shift of its own, or a corruption of known form.
        for known in (False, True):
            kind = [one for one in candidates if one.coherent and (one.runs.mechanism is not None) == known]
            lead = max((rival.criterion - one.criterion for one in kind), default=-np.inf)
            least = -min(behind, MECHANISM_PRICE - SLIGHT_GAIN) if known else -behind
            if least < lead <= CHECKED_LEAD:
                leads[known] = lead
        if self._resample is None or not leads:
            return candidates
        self._draw(
            rival, {known: lead for known, lead in leads.items() if (known, rival.spread.name) not in self._raises}
        )
        more = {known: self._raises[known, rival.spread.name] for known in leads}
        return [
            replace(one, price=one.price + more.get(one.runs.mechanism is not None, 0.0)) if one.coherent else one
            for one in candidates
        ]

    def _draw(self, rival: Candidate, leads: dict[bool, float]) -> None:
        """Find by how much the prices of minorities that lead by so much are raised."""
        if self._resample is None or not leads:
            return
        prices = {False: minority_price(len(rival.spread.variances)), True: MECHANISM_PRICE}
        gains: dict[bool, list[float]] = {known: [] for known in leads}
        for scores in islice(self._resample(rival.spread), RESAMPLES):
            marginal = rival.spread.integrated(scores)
            plain = normal_run(marginal)
            gross = gross_runs(marginal, plain.centres)
            # A single client far off is gross, and no minority.
            other = max(float(plain.log_likelihoods[0]), float(gross.log_likelihoods[0]) - 0.5 * GROSS_PRICE)
            for known, values in gains.items():
                minority = (mechanism_runs if known else coherent_runs)(marginal, plain.centres, gross=False)
                if minority is not None:
                    values.append(2.0 * (float(minority.log_likelihoods[0]) - other))
            if all(_decided(gains[known], prices[known], lead) for known, lead in leads.items()):
                break
        for known, values in gains.items():
            self._raises[known, rival.spread.name] = max(_bound(values) - prices[known], 0.0) if values else 0.0


def _bound(gains: list[float]) -> float:
    """Return an upper bound of gains by chance, about their .999 quantile."""
    return float(np.mean(gains) + DEVIATIONS * np.std(gains))


def _decided(gains: list[float], price: float, lead: float) -> bool:
    """Return whether the gains so far are enough to decide: the price holds, or is far beyond the lead."""
    if not gains:
        return True
    if len(gains) < FIRST:
        return False
    # A standard deviation of k normal values has the variance 1 / (2 k), that of their mean is 1 / k.
    error = SURE * float(np.std(gains)) * np.sqrt((1.0 + 0.5 * DEVIATIONS**2) / len(gains))
    bound = _bound(gains)
    return bool(bound + error < price or lead - (bound - error - price) < -BEHIND)
