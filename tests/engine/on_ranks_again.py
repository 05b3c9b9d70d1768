"""A program for mpiexec: fits made again, nested tests, goodness of fit and the oracle, by one, two, ... ranks.

    mpiexec -n 4 python on_ranks_again.py [all]

Of rows that all ranks have, and of data by rank: in turn, or with `all` both for every number of ranks. Rank 0 prints a
line for each that says what differs from a fit without MPI.
"""

import sys
import warnings
from itertools import islice

import numpy as np
from mpi4py.MPI import COMM_WORLD
from on_ranks import set_to, told

import adfl_stats as ad
from adfl_stats.engine import transport
from adfl_stats.engine.ranks import shares
from adfl_stats.engine.transport import batch_bounds
from adfl_stats.inference import majority, sensitivity

# So few that no coherent minority is tried, whose search asks other places thousands of times.
M = 7
CIRCLE = ad.networks.directed_circle(M, 3)
ABNORMAL = [0, 1]
CHOICES = sensitivity._choices


def rows(family, columns, vast):
    """Some clients have altered responses, another one a last column in another unit."""
    sim = ad.simulate.glm_design(family, M=M, n=(12, 25), p=3, seed=4)
    y, bad = sim.y.copy(), sim.client < len(ABNORMAL)
    y[bad] = -y[bad] if family == "gaussian" else 1.0 - y[bad]
    X = sim.X.copy()
    X[sim.client == 4, -1] *= vast
    return X[:, :columns], y, sim.client


def data_of(family, columns, ranks, *, by_rank, vast):
    """All rows, or those of the clients of this rank, by the shares of ranks that have all rows."""
    X, y, client = rows(family, columns, vast)
    if not by_rank:
        return ad.ClientData.from_arrays(X, y, client)
    bounds = batch_bounds(M, len(y))
    low, high = bounds[shares(len(bounds) - 1, ranks.size)[ranks.rank : ranks.rank + 2]]
    mine = (client >= low) & (client < high)
    return ad.RankData.of(ad.ClientData.from_arrays(X[mine], y[mine], client[mine]) if mine.any() else None, ranks)


def fits(family, ranks, *, by_rank, vast=1.0):
    """A model and a smaller one, and how to fit them so that they can be fitted again."""
    models = [
        ad.DecentralizedGLM(data_of(family, columns, ranks, by_rank=by_rank, vast=vast), CIRCLE, family)
        for columns in (3, 2)
    ]
    return *models, {"keep_data": True, "transport": None if by_rank else ranks}


def arrays(made):
    """The parts of an object that are frames, series and numbers."""
    return {name: part.to_numpy() if hasattr(part, "to_numpy") else np.array(part) for name, part in vars(made).items()}


def lines(made):
    """Return the lines of several objects, by name."""
    return [line for name, one in made.items() for line in told(name, arrays(one))]


def one_choice(res, fits, recipe):
    """The first of the fits that are compared, which are ones of the model as any."""
    return islice(CHOICES(res, fits, recipe), 1)


def again(ranks, *, by_rank):
    """Everything, for clients that share one parameter."""
    large, small, how = fits("gaussian", ranks, by_rank=by_rank)
    res = large.fit(heterogeneity="none", **how)
    with set_to((sensitivity, "_choices", one_choice), (majority, "STARTS", 4)):
        made = {
            "bootstrap": res.bootstrap(2, seed=1),
            "majority": res.majority(),
            "sensitivity": res.get_robustcov_results("HC2").sensitivity(),
            "oracle": res.oracle(ABNORMAL),
        }
    plain, restricted = large.fit(ad.DFL(), **how), small.fit(ad.DFL(), **how)
    tests = {"ratio": plain.compare_lr_test(restricted)}
    tests |= {kind: restricted.score_test(large, kind) for kind in ("sandwich", "nonrobust", "cluster")}
    tests |= {"goodness of fit": res.goodness_of_fit().to_numpy()}
    tests |= overflowing(ranks, by_rank=by_rank)
    how.pop("keep_data")
    tests |= {"starts": ad.compare_starts(large, {"mean": np.zeros(3)}, heterogeneity="none", **how).to_numpy()}
    return lines(made) + told("tests", {name: np.array(one) for name, one in tests.items()})


def overflowing(ranks, *, by_rank):
    """Nested tests where the larger model sets a client aside."""
    large, small, how = fits("gaussian", ranks, by_rank=by_rank, vast=1e200)
    res = large.fit(heterogeneity="none", **how)
    restricted = small.fit(ad.DFL(weights=res.client_weights), **how)
    return {"ratio without": res.compare_lr_test(restricted), "score without": restricted.score_test(large)}


def differing(ranks, *, by_rank):
    """Draws of labels with a penalty, and with given weights; most clients are abnormal for the oracle."""
    model, _, how = fits("binomial", ranks, by_rank=by_rank)
    ridge = ad.DecentralizedGLM(model.everybody, CIRCLE, "binomial", penalty=ad.Ridge(0.1))
    res = model.fit(ad.DFL(), **how)
    made = {
        "given": res.bootstrap(2),
        "oracle": res.oracle([0, 1, 2, 3]),
        "draws": ridge.fit(**how).bootstrap(2, seed=2),
    }
    return lines(made)


def main(every):
    warnings.simplefilter("ignore")
    transport.BATCH_CLIENTS = 2
    for turn, case in enumerate((again, differing)):
        alone = COMM_WORLD.bcast(case(None, by_rank=False) if COMM_WORLD.rank == 0 else None)
        for size in range(1 if every or case is again else 2, COMM_WORLD.size + (every or case is again)):
            team = COMM_WORLD.Split(int(COMM_WORLD.rank >= size), COMM_WORLD.rank)
            for by_rank in (False, True) if every else ((size + turn) % 2 == 0,):
                here = case(ad.MPI(team), by_rank=by_rank) if COMM_WORLD.rank < size else alone
                differ = [one.split(":")[0] for one, other in zip(here, alone, strict=True) if one != other]
                told_by_all = COMM_WORLD.gather(differ)
                if COMM_WORLD.rank == 0:
                    how, verdict = (
                        "by rank" if by_rank else "all rows",
                        f"differ {told_by_all}" if any(told_by_all) else "same",
                    )
                    print(f"{case.__name__} on {size} ranks, {how}: {verdict}", flush=True)


if __name__ == "__main__":
    main(every="all" in sys.argv)
