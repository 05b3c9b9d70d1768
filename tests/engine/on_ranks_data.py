"""A program for mpiexec: data by rank, from files and from arrays; see on_ranks.py.

    mpiexec -n 2 python on_ranks_data.py FOLDER CASE ...

The folder has what `written` wrote. With ranks=None the same fits are made from all rows in one place.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from on_ranks import M, fitted, told

import adfl_stats as ad
from adfl_stats.engine import transport

CIRCLE = ad.networks.directed_circle(M, 5, labels=[f"c{k:02d}" for k in range(M)])
FORMULA = "y ~ x1 + C(ward)"


def frame_of(family="gaussian"):
    """Clients in order; the last ward is seen by few of them."""
    rng = np.random.default_rng(7)
    sizes = rng.integers(15, 30, M)
    client = np.repeat(np.arange(M), sizes)
    x = rng.normal(size=len(client))
    ward = np.where((client > 30) & (rng.random(len(client)) < 0.5), "z", rng.choice(list("ab"), len(client)))
    eta = 0.5 + 0.3 * x - 0.4 * (ward == "b") + 0.2 * (ward == "z")
    bad = client < M // 10
    if family == "gaussian":
        y = np.where(bad, -1.0, 1.0) * (eta + rng.normal(size=len(eta)))
    elif family == "binomial":
        y = (rng.random(len(eta)) < 1.0 / (1.0 + np.exp(-np.where(bad, -3.0, 1.0) * eta))).astype(float)
    else:
        y = rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(eta))).astype(float)
    return pd.DataFrame({"y": y, "x1": x, "ward": ward, "client": [f"c{k:02d}" for k in client]})


def written(folder):
    """Write one file of small row groups, a folder of partitions across clients, and a file for each client."""
    frame = frame_of()
    frame.to_parquet(folder / "one.parquet", row_group_size=64)
    for name in ("parts", "clients", "own0", "own1", "own2"):
        (folder / name).mkdir()
    for k, part in enumerate(np.array_split(np.arange(len(frame)), 5)):
        frame.iloc[part].to_parquet(folder / "parts" / f"part{k}.parquet", row_group_size=50)
    for k, (name, rows) in enumerate(frame.groupby("client")):
        rows.drop(columns="client").to_parquet(folder / "clients" / f"{name}.parquet")
        # Consecutive clients, so that their order is that of the frame.
        rows.to_parquet(folder / ("own0" if k < 10 else "own1") / f"{name}.parquet")
    for family in ("binomial", "negativebinomial"):
        frame_of(family).to_parquet(folder / f"{family}.parquet", row_group_size=100)


def whole_data(family="gaussian", client="client"):
    return ad.ClientData.from_frame(frame_of(family).rename(columns={"client": client}), FORMULA, client)


def by_file(ranks, path, client="client", family="gaussian"):
    """The data of a path; without ranks, of the frame."""
    if ranks is None:
        return whole_data(family, client or "file")
    data = ad.RankData.from_parquet(FOLDER / path, FORMULA, client, ranks)
    assert ranks.size == 1 or data.own.n_rows < data.n_rows
    return data


def one(ranks):
    """A file with row groups: the default fit."""
    return fitted("one", ad.DecentralizedGLM(by_file(ranks, "one.parquet"), CIRCLE), None)


def ordered(ranks):
    """Clients in an order that was given, here by the last digit."""
    order = sorted(CIRCLE.labels, key=lambda name: name[::-1])
    data = whole_data(client="file").in_order(order) if ranks is None else None
    if ranks is not None:
        data = ad.RankData.from_parquet(FOLDER / "clients", FORMULA, None, ranks, order=order)
    return fitted("ordered", ad.DecentralizedGLM(data, CIRCLE), None, ad.DFL(), step=0.1, rounds=9)


def folder(ranks):
    return fitted("folder", ad.DecentralizedGLM(by_file(ranks, "parts"), CIRCLE), None, ad.DFL(), step=0.1, rounds=9)


def pattern(ranks):
    """A file for each client, named by it."""
    model = ad.DecentralizedGLM(by_file(ranks, "clients/*.parquet", None), CIRCLE)
    return fitted("pattern", model, None, ad.DFL())


def families(ranks):
    """Labels, overdispersion and the scale of Huber's loss are those of all rows."""
    huber = ad.DecentralizedGLM(by_file(ranks, "one.parquet"), CIRCLE, "huber")
    binomial = ad.DecentralizedGLM(by_file(ranks, "binomial.parquet", family="binomial"), CIRCLE, "binomial")
    name = "negativebinomial"
    counts = ad.DecentralizedGLM(by_file(ranks, f"{name}.parquet", family=name), CIRCLE, name)
    attack = {"attack": ad.attacks.SignFlip(["c01", "c33"]), "step": 0.1, "rounds": 5}
    ridge = ad.DecentralizedGLM(by_file(ranks, "one.parquet"), CIRCLE, penalty=ad.Ridge(0.1))
    return [
        *told("constants", {"huber": np.array(huber.family.par), "alpha": np.array(counts.family.par)}),
        *fitted("huber", huber, None, ad.DFL(), rounds=5),
        *fitted("binomial", binomial, None),
        *fitted("counts", counts, None, ad.DFL()),
        *fitted("attacked", binomial, None, ad.DFL(), **attack),
        *fitted("ridge", ridge, None, ad.DFL(), step=0.1, rounds=5),
    ]


def brought(case, ranks, X, *given):
    """Each rank brings arrays; the last of three has none. Without ranks in one place, with the same batches."""
    y, client = np.arange(120.0) % 11.0, np.repeat([f"c{k:02d}" for k in range(12)], 10)
    net = ad.networks.complete(12, labels=list(dict.fromkeys(client)))
    data = ad.ClientData.from_arrays(X, y, client)
    if ranks is not None:
        mine = slice(0, 60) if ranks.rank == 0 else slice(60, 120)
        held = ad.ClientData.from_arrays(X[mine], y[mine], client[mine]) if ranks.rank < 2 else None
        data = ad.RankData.of(held, ranks)
    before, transport.BATCH_CLIENTS = transport.BATCH_CLIENTS, 6
    try:
        return fitted(case, ad.DecentralizedGLM(data, net, *given), None, ad.ADFL(balance=True) if given else ad.DFL())
    finally:
        transport.BATCH_CLIENTS = before


X = np.arange(240.0).reshape(120, 2) % 7.0 + np.eye(2)[np.arange(120) % 2]


def arrays(ranks):
    return brought("arrays", ranks, X)


def overflow(ranks):
    """A client of one rank is set aside, which all ranks decide; what a fit begins at they make together."""
    vast = np.where((np.arange(120) // 10 == 3)[:, None], 1e200 * X, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ad.errors.ConditionWarning)
        return brought("overflow", ranks, vast, "huber")


def disks(ranks):
    """Ranks see different files, the third none; factors have levels that only some ranks see."""
    if ranks is None:
        data = whole_data()
    else:
        data = ad.RankData.from_parquet(FOLDER / f"own{ranks.rank}", FORMULA, "client", ranks)
    return fitted("disks", ad.DecentralizedGLM(data, CIRCLE), None, ad.DFL(), step=0.1, rounds=9)


def backwards(ranks):
    """The same ranks in another order."""
    from mpi4py.MPI import COMM_WORLD

    return COMM_WORLD.Split(0, -ranks.rank)


def refused(ranks):
    """All ranks meet the same errors, and go on."""
    data = by_file(ranks, "one.parquet")
    model = ad.DecentralizedGLM(data, CIRCLE)
    mine = whole_data()
    other = ad.ClientData.from_arrays(np.ones((4, 1)), np.arange(4.0), [ranks.rank] * 4, names=[f"x{ranks.rank}"])
    plain = {"step": 0.1, "rounds": 5}
    res = model.fit(ad.DFL(), **plain)
    small = ad.RankData.from_parquet(FOLDER / "one.parquet", "y ~ x1", "client", ranks)
    restricted = ad.DecentralizedGLM(small, CIRCLE).fit(ad.DFL(), **plain)
    kept = model.fit(ad.DFL(), keep_data=True, **plain)
    assert kept.data is None
    assert kept.model.data.n_clients < M
    whole = ad.DecentralizedGLM(mine, CIRCLE).fit(ad.DFL(), keep_data=True, **plain)
    smaller = ad.RankData.from_parquet(FOLDER / "one.parquet", "y ~ 1", "client", ranks)
    nested = [ad.DecentralizedGLM(data, CIRCLE) for data in (small, smaller)]
    restrictions = [one.fit(ad.DFL(), keep_data=True, **plain) for one in nested]
    first = ranks.rank == 0
    calls = [
        lambda: kept.compare_lr_test(restrictions[ranks.rank]),
        lambda: restrictions[1].score_test((model, nested[0])[ranks.rank]),
        lambda: kept.sensitivity() if first else kept.bootstrap(4),
        lambda: kept.sensitivity(clients=first),
        lambda: kept.goodness_of_fit() if first else model.fit(ad.DFL(), **plain),
        lambda: whole.compare_lr_test(restrictions[0]),
        lambda: whole.score_test(nested[0]),
        lambda: kept.oracle(["c00"], data=data),
        lambda: res.goodness_of_fit(),
        lambda: res.bootstrap(20),
        lambda: res.sensitivity(),
        lambda: res.majority(),
        lambda: res.oracle(["c00"]),
        lambda: res.oracle(["c00"], data=model.data),
        lambda: res.compare_lr_test(restricted),
        lambda: restricted.score_test(model),
        lambda: kept.fittedvalues,
        lambda: kept.resid,
        lambda: kept.predict(),
        lambda: model.fit(transport=ad.Gossip()),
        lambda: model.fit(transport=ad.MPI(backwards(ranks))),
        lambda: model.rates(None),
        lambda: model.advise(),
        lambda: ad.RankData.of(mine, ranks),
        lambda: ad.RankData.of(other, ranks),
        lambda: ad.RankData.of(None, ranks),
        lambda: ad.RankData.of(frame_of(), ranks),
        lambda: ad.RankData.from_parquet(FOLDER / "nowhere.parquet", FORMULA, "client", ranks),
        lambda: ad.RankData.from_parquet(FOLDER / "one.parquet", FORMULA, "client", ranks, order=["c00"]),
        lambda: ad.RankData.from_parquet(FOLDER / f"own{ranks.rank}", FORMULA, "client", ranks, order=CIRCLE.labels),
        lambda: ad.RankData.from_parquet(FOLDER / "one.parquet", "y ~ x9", "client", ranks),
        lambda: ad.RankData.from_parquet(FOLDER / "one.parquet", "y ~ center(x1)", "client", ranks),
        lambda: ad.RankData.from_parquet(FOLDER / "one.parquet", "y ~ scale(x1) + bs(x1, df=4)", "client", ranks),
        lambda: ad.RankData.from_parquet(FOLDER / "one.parquet", ("y ~ x1", "y ~ 1")[ranks.rank], "client", ranks),
        lambda: ad.RankData.from_parquet(FOLDER / "one.parquet", FORMULA, ("client", None)[ranks.rank], ranks),
        lambda: ad.RankData.from_parquet(
            FOLDER / "one.parquet", FORMULA, "client", ranks, missing=("raise", "drop")[ranks.rank]
        ),
    ]
    for call in calls:
        try:
            call()
        except (TypeError, ValueError, FileNotFoundError) as error:
            print(f"{type(error).__name__}: {error}")
        else:
            raise AssertionError("not refused")
    return []


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transport.BATCH_CLIENTS = 10
    ranks = ad.MPI()
    FOLDER = Path(sys.argv[1])
    for name in sys.argv[2:]:
        lines = globals()[name](ranks)
        (FOLDER / f"{name}.{ranks.rank}").write_text("\n".join(lines))
        print(f"{name}: rank {ranks.rank} of {ranks.size} is done", flush=True)
