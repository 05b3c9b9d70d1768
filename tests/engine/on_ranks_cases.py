"""A program for mpiexec: random small fits on two, three, ... ranks of those at hand, and without MPI.

    mpiexec -n 4 python on_ranks_cases.py FIRST LAST

Families, numbers of clients and columns, networks, methods and batches are drawn from the seeds FIRST to LAST - 1.
Rank 0 prints a line for each case and number of ranks that says what differs.
"""

import sys
import warnings

import numpy as np
from mpi4py import MPI
from on_ranks import said, told

import adfl_stats as ad
from adfl_stats import _model_rows
from adfl_stats.engine.transport import cuts_of

METHODS = (
    (None, {}),
    (None, {"heterogeneity": "none"}),
    (None, {"heterogeneity": "estimate"}),
    (ad.ADFL(), {"rounds": 12, "solver": "rounds"}),
    (ad.ADFL(lam="cv"), {}),
    (ad.DFL(), {}),
    (ad.Bridge("median"), {"rounds": 6, "step": 0.05}),
)
FAMILIES = ("gaussian", "binomial", "poisson", "huber", "gamma", "negativebinomial")


def drawn(seed):
    """Return data, network, family, batches of clients, and how to fit."""
    rng = np.random.default_rng(seed)
    family, M, p = FAMILIES[seed % 6], int(rng.integers(12, 31)), int(rng.integers(1, 10))
    few = int(rng.integers(p + 5, 30))
    base = {"huber": "gaussian", "gamma": "poisson", "negativebinomial": "poisson"}.get(family, family)
    intercept = bool(rng.integers(2))
    sim = ad.simulate.glm_design(base, M=M, n=(few, few + 20), p=p, intercept=intercept, seed=seed)
    y, X, bad = sim.y.astype(float), sim.X.copy(), sim.client < M // 8
    if base == "gaussian":
        y += (0.3 * rng.normal(size=M) if seed % 2 else np.zeros(M))[sim.client]
    y[bad] = {"gaussian": -y[bad], "binomial": 1.0 - y[bad], "poisson": y[bad][::-1]}[base]
    if family == "gamma":
        y = (y + 0.5) * rng.gamma(5.0, 0.2, len(y))
    if p > 2:
        # A column that the first half of the clients does not have.
        X[:, -1] = np.where(sim.client < M // 2, 0.0, X[:, -1] > 0.0)
    weights = rng.uniform(0.5, 2.0, len(y)) if rng.random() < 0.2 and family != "binomial" else None
    network = (ad.networks.directed_circle(M, 5), ad.networks.complete(M), ad.networks.erdos_renyi(M, 0.6, seed=1))
    cuts = np.arange(1, 4) * M // 4 if rng.random() < 0.5 else np.append(rng.integers(2, M - 1, 3), (1, M - 1))
    data = ad.ClientData.from_arrays(X, y, sim.client, weights=weights)
    return (
        data,
        network[int(rng.integers(3))],
        family,
        np.unique([0, *cuts, M]),
        METHODS[int(rng.integers(len(METHODS)))],
    )


def use_batches(bounds):
    """Let models and fits have these batches, in the place of those of `batch_bounds`."""
    assert callable(_model_rows.batch_bounds)
    _model_rows.batch_bounds = lambda *_: bounds


def lines(model, bounds, ranks, method, options):
    """Return digests of all that the results say, or the error."""
    try:
        res = model.fit(method, transport=ranks, **options)
    except ValueError as error:
        return [str(error)]
    assert cuts_of(res.record.members.transport).tolist() == bounds[1:-1].tolist()
    return told("fit", said(res))


def main(first, last):
    warnings.simplefilter("ignore")
    world = MPI.COMM_WORLD
    teams = {size: world.Split(int(world.rank >= size), world.rank) for size in range(2, world.size + 1)}
    for seed in range(first, last):
        data, network, family, bounds, (method, options) = drawn(seed)
        use_batches(bounds)
        model = ad.DecentralizedGLM(data, network, family)
        alone = world.bcast(lines(model, bounds, None, method, options) if world.rank == 0 else None)
        for size, team in teams.items():
            here = lines(model, bounds, ad.MPI(team), method, options) if world.rank < size else alone
            differ = world.gather([one.split(":")[0] for one, other in zip(here, alone, strict=True) if one != other])
            if world.rank == 0:
                told_by = f"{family}, {len(data.labels)} clients, {method}, {options}, batches {bounds.tolist()}"
                verdict = f"differ {differ}" if any(differ) else "same"
                print(f"case {seed} on {size} ranks: {verdict}; {told_by}; {alone[0][:40]}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
