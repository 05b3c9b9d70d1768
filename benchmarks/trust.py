"""What minorities and gross clients gain by chance: the measurements behind the prices of `trust.candidates`.

Clients share one parameter and have normal scores. Printed are quantiles of twice the gain in log-likelihood of a model
with a coherent minority, with flipped responses (that move a client by 0, 1 or 3 standard errors), and with gross
clients, over normal clients alone, beside their prices; and how often the minority's gain exceeds its price.

    python benchmarks/trust.py [--replicates 200]
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pandas as pd

from adfl_stats.trust.candidates import GROSS_PRICE, MECHANISM_PRICE, minority_price
from adfl_stats.trust.mixture import ClientScores, coherent_runs, gross_runs, mechanism_runs, normal_run

SIZES = [(P, M) for P in (1, 2, 5, 10, 20, 50) for M in (20, 100, 400)]
LEVELS = (0.5, 0.9, 0.99)
DISTANCES = (0.0, 1.0, 3.0)


def normal_scores(rng: np.random.Generator, M: int, P: int) -> ClientScores:
    """Return scores of M clients that share one parameter, with unit information."""
    z = rng.standard_normal((M, P))
    return ClientScores(
        slopes=z,
        information=np.tile(np.eye(P), (M, 1, 1)),
        squares=np.square(z).sum(axis=1),
        ranks=np.full(M, float(P)),
        df=np.full(M, 1e7),
        log_det=np.zeros(M),
    )


def with_flips(scores: ClientScores, distance: float) -> ClientScores:
    """Return the scores with flipped responses as a corruption, that move a client by so many standard errors."""
    offsets = np.zeros((scores.M, 2, scores.P))
    offsets[:, 0] = distance / np.sqrt(scores.P)
    return replace(scores, offsets=offsets, mean_slopes=np.zeros((scores.M, scores.P)), mechanisms=("flipped",))


def gains(P: int, M: int, replicates: int) -> dict[str, float]:
    """Return quantiles of the gains for one size."""
    minority, known, gross = [], [], []
    for k in range(replicates):
        scores = normal_scores(np.random.default_rng([k, P, M]), M, P)
        plain = normal_run(scores)
        base = plain.log_likelihoods[0]
        minority.append(2.0 * (coherent_runs(scores, plain.centres, gross=False).log_likelihoods[0] - base))
        for distance in DISTANCES:
            flipped = mechanism_runs(with_flips(scores, distance), plain.centres, gross=False)
            known.append(-np.inf if flipped is None else 2.0 * (flipped.log_likelihoods[0] - base))
        gross.append(2.0 * (gross_runs(scores, plain.centres).log_likelihoods[0] - base))
    row: dict[str, float] = {"P": P, "M": M}
    row |= {f"minority {level:g}": float(np.quantile(minority, level)) for level in LEVELS}
    row |= {"price": minority_price(P), "exceeded": float(np.mean(np.array(minority) > minority_price(P)))}
    row |= {"flipped .99": float(np.quantile(known, 0.99)), "flipped price": MECHANISM_PRICE}
    return row | {"gross .99": float(np.quantile(gross, 0.99)), "gross price": GROSS_PRICE}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=200, help="data sets a size (default %(default)s)")
    replicates = parser.parse_args().replicates
    rows = [gains(P, M, max(10, replicates // (4 if P * M > 5000 else 1))) for P, M in SIZES]
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.3g}".format))


if __name__ == "__main__":
    main()
