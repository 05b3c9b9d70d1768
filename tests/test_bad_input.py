"""What is wrong with the input is said where it enters, with the argument, what was found and what is wanted."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import adfl_stats as ad
from adfl_stats.errors import ConditionWarning

# Each case is a callable, given the fixtures as attributes, with the error and the message it must match.


@pytest.fixture
def case(logistic, frame, network, model, res, tmp_path):
    return SimpleNamespace(
        X=np.array(logistic.X),
        y=np.array(logistic.y),
        client=frame["client"].to_numpy(),
        frame=frame,
        network=network,
        model=model,
        res=res,
        folder=tmp_path,
    )


def build(case, *, family="binomial", network=None, **changes):
    """Make the model of the fixtures from arrays, some of them changed."""
    parts = {"X": case.X, "y": case.y, "client": case.client} | changes
    data = ad.ClientData.from_arrays(**parts)
    return ad.DecentralizedGLM(data, case.network if network is None else network, family)


def put(array, place, value):
    """Return a copy with one entry changed."""
    changed = np.array(array, dtype=float)
    changed[place] = value
    return changed


def written(path, content):
    path.write_bytes(content)
    return path


def archive(path, **arrays):
    np.savez(path, **arrays)
    return path


def as_json(text):
    return np.frombuffer(text.encode(), dtype=np.uint8)


def fit(method=None, **arguments):
    """Return a case that fits the model of the fixtures."""
    return lambda c: c.model.fit(ad.DFL() if method is None else method, **({"rounds": 2} | arguments))


def replaced(X, column, values):
    changed = X.copy()
    changed[:, column] = values
    return changed


W3 = np.full((3, 3), 1 / 3)

CASES = {
    # ---- numbers that are none
    "NaN in X": (lambda c: build(c, X=put(c.X, (7, 2), np.nan)), ValueError, "X has NaN .* first is nan in row 7"),
    "inf in X": (lambda c: build(c, X=put(c.X, (0, 1), -np.inf)), ValueError, "X has NaN .* first is -inf in row 0"),
    "NaN in y": (lambda c: build(c, y=put(c.y, 9, np.nan)), ValueError, "y has NaN .* first is nan in row 9"),
    "inf in y": (lambda c: build(c, y=put(c.y, 9, np.inf)), ValueError, "y has NaN .* first is inf in row 9"),
    "NaN in offset": (lambda c: build(c, offset=put(c.y, 3, np.nan)), ValueError, "offset has NaN .* in row 3"),
    "inf in weights": (lambda c: build(c, weights=put(c.y + 1, 3, np.inf)), ValueError, "weights has NaN .* in row 3"),
    "NaN far down": (
        lambda c: ad.ClientData.from_arrays(put(np.ones((70_000, 1)), 69_999, np.nan), np.ones(70_000), [0] * 70_000),
        ValueError,
        "first is nan in row 69999",
    ),
    "measurements as classes": (
        lambda c: build(c, y=c.X[:, 1], family="multinomial"),
        ValueError,
        "y has 390 distinct numbers; family 'multinomial' .* at most 100 whole numbers",
    ),
    # ---- clients and network
    "client without rows": (
        lambda c: build(c, X=c.X[c.client != "h5"], y=c.y[c.client != "h5"], client=c.client[c.client != "h5"]),
        ValueError,
        "in the network, but without rows in the data: 'h5'; in the data, but not in the network: none",
    ),
    "client not in the network": (
        lambda c: build(c, client=np.where(c.client == "h5", "x5", c.client)),
        ValueError,
        "without rows in the data: 'h5'; in the data, but not in the network: 'x5'.*Leave these clients out",
    ),
    "numbers for text": (
        lambda c: build(c, network=ad.networks.complete(8)),
        ValueError,
        "network has 8 clients without names, the data have 8 named 'h0', .* and 3 more; .*labels=data.labels",
    ),
    "client without rows, no names": (
        lambda c: build(c, client=c.client == "h0", network=ad.networks.complete(3)),
        ValueError,
        "in the network, but without rows in the data: 2;",
    ),
    "isolated client": (
        lambda c: ad.Network.from_adjacency([[0, 1], [0, 0]], labels=["a", "b"]),
        ValueError,
        r"A has clients that receive from nobody \(1 of 2\): 'b'",
    ),
    "W not square": (lambda c: ad.Network.from_weights(W3[:2]), ValueError, r"W has shape \(2, 3\); it must be square"),
    "W negative": (lambda c: ad.Network.from_weights(put(W3, (1, 2), -1)), ValueError, "negative .* row 1, column 2"),
    "W with NaN": (lambda c: ad.Network.from_weights(put(W3, (1, 2), np.nan)), ValueError, "W has NaN .* row 1, col"),
    "rows of W": (
        lambda c: ad.Network.from_weights(put(W3, (1, 2), 1)),
        ValueError,
        r"rows that do not sum to 1 \(1: ",
    ),
    "data of another type": (
        lambda c: ad.DecentralizedGLM(c.frame, c.network),
        TypeError,
        "data is a DataFrame; build a ClientData with ClientData.from_frame",
    ),
    "network of another type": (
        lambda c: ad.DecentralizedGLM(c.model.data, np.eye(8)),
        TypeError,
        "network is a ndarray; build a Network with Network.from_adjacency",
    ),
    "weighting": (
        lambda c: ad.DecentralizedGLM(c.model.data, c.network, "binomial", weighting="rows"),
        ValueError,
        "weighting is 'rows'; choose one of 'sample', 'client'",
    ),
    # ---- responses
    "binomial y": (lambda c: build(c, y=put(c.y, 4, 2)), ValueError, r"'binomial'.* is 2 in row 4.*values in \[0, 1\]"),
    "poisson y": (
        lambda c: build(c, y=put(c.y, 4, -1), family="poisson"),
        ValueError,
        "outside the domain of family 'poisson': 1 value.*-1 in row 4.*wants counts",
    ),
    "negative binomial y": (
        lambda c: build(c, y=put(c.y, 4, -1), family="negativebinomial"),
        ValueError,
        "outside the domain of family 'negativebinomial'.*wants counts",
    ),
    "gamma y": (lambda c: build(c, y=put(c.y + 1, 4, 0), family="gamma"), ValueError, "'gamma'.*is 0 in row 4.*> 0"),
    "one class": (lambda c: build(c, y=0 * c.y, family="multinomial"), ValueError, "at least 2 classes, found 1"),
    "constant y": (lambda c: build(c, y=0 * c.y), ValueError, "y takes the single value 0 in all 390 rows"),
    "constant label": (lambda c: build(c, y=["a"] * len(c.y)), ValueError, "y takes the single value"),
    "three labels": (
        lambda c: build(c, y=np.array(["a", "b", "c"])[np.arange(len(c.y)) % 3]),
        ValueError,
        "y holds the labels 'a', 'b', 'c', family 'binomial' wants numbers; use family='multinomial'",
    ),
    "labels, no classes": (
        lambda c: build(c, y=np.where(c.y == 1, "yes", "no"), family="poisson"),
        ValueError,
        "y holds the labels 'no', 'yes'; use family='binomial'",
    ),
    "family": (lambda c: build(c, family="normal"), ValueError, "family is 'normal'; choose one of 'gaussian', 'bin"),
    "family class": (lambda c: build(c, family=sm.families.Poisson), TypeError, "pass an instance, Poisson"),
    "link": (
        lambda c: build(c, family=sm.families.Binomial(sm.families.links.Cauchy())),
        ValueError,
        "family 'binomial' with the link 'cauchy' is not available; its links are: 'logit', 'probit', 'cloglog'",
    ),
    # ---- columns
    "formula names no column": (
        lambda c: ad.DecentralizedGLM.from_formula("y ~ age", c.frame, "client", c.network),
        ValueError,
        "the frame has no column 'age'.*its columns are 'client', 'y', 'x1'",
    ),
    "collinear columns": (
        lambda c: build(c, X=np.column_stack([c.X, c.X[:, 1] - 2 * c.X[:, 0]])),
        ValueError,
        "linearly dependent over all 390 rows: 'x[125]' is a linear combination of 'x[125]', 'x[125]'",
    ),
    "zero column": (
        lambda c: build(c, X=replaced(c.X, 2, 0.0)),
        ValueError,
        "the columns 'x3' of X are zero in every row; leave them out",
    ),
    "more columns than rows": (
        lambda c: build(c, X=np.random.default_rng(1).normal(size=(390, 400))),
        ValueError,
        "linearly dependent over all 390 rows",
    ),
    # ---- the run
    "step negative": (fit(step=-0.1), ValueError, r"step is -0.1; it must lie in \(0, inf\)"),
    "step zero": (fit(step=0), ValueError, r"step is 0; it must lie in \(0, inf\)"),
    "step NaN": (fit(step=np.nan), ValueError, "step is nan; it must lie in"),
    "step infinite": (fit(step=np.inf), ValueError, "step is inf; it must lie in"),
    "step a word": (fit(step="fast"), TypeError, r"step must be a number, got 'fast' \(str\)"),
    "step a number in quotes": (fit(step="0.1"), TypeError, r"step must be a number, got '0.1' \(str\)"),
    "step a flag": (fit(step=True), TypeError, "step must be a number, got True"),
    "step an array": (fit(step=np.array([0.1, 0.2])), TypeError, "step must be a number, got array"),
    "rounds zero": (fit(rounds=0), ValueError, "rounds is 0; it must be at least 1"),
    "rounds a float": (fit(rounds=10.0), TypeError, r"rounds must be a whole number, got 10.0 \(float\)"),
    "rounds a flag": (fit(rounds=True), TypeError, "rounds must be a whole number, got True"),
    "max_rounds": (fit(max_rounds=0), ValueError, "max_rounds is 0; it must be at least 1"),
    "tolerance": (fit(tolerance=0.0), ValueError, r"tolerance is 0; it must lie in \(0, inf\)"),
    "threads": (fit(threads=0), ValueError, "threads is 0; it must be at least 1"),
    "diverging step": (
        lambda c: build(c, family="gaussian").fit(ad.DFL(), step=50.0, rounds=100),
        ad.DivergenceError,
        r"the iteration diverged in round \d+ at step=50; steps up to 0\.\d+ are safe.*Pass a smaller step",
    ),
    # ---- methods
    "method a word": (fit("dfl"), TypeError, r"method is 'dfl'; pass a method object such as ad.DFL\(\)"),
    "method a class": (fit(ad.DFL), TypeError, r"method is <class .*DFL'>; pass a method object such as ad.DFL\(\)"),
    "weights too large": (fit(ad.DFL([2.0] + [0.5] * 7)), ValueError, r"weights must lie in \[0, 1\]; found 0.5 to 2"),
    "weights negative": (fit(ad.DFL([-1.0] + [0.5] * 7)), ValueError, r"weights must lie in \[0, 1\]; found -1 to"),
    "weights NaN": (fit(ad.DFL([np.nan] * 8)), ValueError, r"weights must lie in \[0, 1\]; found nan"),
    "weights too few": (fit(ad.DFL([1.0] * 7)), ValueError, r"weights has shape \(7,\).*each of the 8 clients"),
    "weights words": (fit(ad.DFL(["high"] * 8)), TypeError, "weights must hold numbers"),
    "weights all zero": (fit(ad.DFL(np.zeros(8))), ValueError, "weights are all zero; at least one client"),
    "weights without some": (fit(ad.DFL({"h1": 1.0})), ValueError, "weights lacks the clients 'h0', 'h2', .*1\\]"),
    "weights of others": (
        fit(ad.DFL(pd.Series(1.0, index=[f"h{k}" for k in range(9)]))),
        ValueError,
        "weights names clients that the data do not have: 'h8'; leave them out",
    ),
    "init shape": (fit(ad.DFL(init=np.zeros(3))), ValueError, r"init has shape \(3,\); \(4,\) for all .* or \(8, 4\)"),
    "init NaN": (fit(ad.DFL(init=[0, 0, 0, np.nan])), ValueError, "init has NaN or infinite values; every client"),
    "init a word": (fit(ad.ADFL(init="zero")), TypeError, "init must hold numbers"),
    "init a class": (fit(ad.ADFL(init=ad.Bridge)), TypeError, "init must hold numbers"),
    "init of other clients": (
        fit(ad.DFL(init=pd.DataFrame(np.zeros((8, 4))))),
        ValueError,
        "init has other clients than the data; its index must hold every client's label once",
    ),
    "lam negative": (lambda c: ad.ADFL(lam=-1.0), ValueError, r"lam is -1; it must lie in \[0, inf\)"),
    "lam a word": (
        lambda c: ad.ADFL(lam="auto"),
        ValueError,
        "lam is 'auto'; give a number, several to choose from, 'cv' or None",
    ),
    "lam empty": (lambda c: ad.ADFL(lam=[]), ValueError, "lam is empty; give a number, several to choose from"),
    "refresh without lam": (
        lambda c: ad.ADFL(refresh=5),
        ValueError,
        r"refresh=5 recomputes the weights exp\(-lam s_m\); give lam, a number or 'cv'",
    ),
    "no last stage without lam": (
        lambda c: ad.ADFL(equalise=False),
        ValueError,
        "equalise=False with lam=None defines no weights; give lam, a number or 'cv'",
    ),
    "heterogeneity a word": (
        lambda c: c.model.fit(heterogeneity="some"),
        ValueError,
        "heterogeneity is 'some'; choose one of 'auto', 'none', 'estimate'",
    ),
    "refresh without rounds": (
        lambda c: c.model.fit(ad.ADFL(lam=1.0, refresh=5)),
        ValueError,
        "refresh=5 needs a number of rounds; pass rounds= to fit",
    ),
    "stages zero": (lambda c: ad.ADFL(stages=0), ValueError, "stages is 0; it must be at least 1"),
    "measure": (lambda c: ad.ADFL(measure="size"), ValueError, "measure is 'size'; choose one of 'norm', 'score'"),
    "rule": (lambda c: ad.Bridge("mean"), ValueError, "rule is 'mean'; choose one of 'median'"),
    # ---- results
    "alpha zero": (lambda c: c.res.conf_int(alpha=0.0), ValueError, r"alpha is 0; it must lie in \(0, 1\)"),
    "alpha per cent": (lambda c: c.res.conf_int(alpha=95), ValueError, r"alpha is 95; it must lie in \(0, 1\)"),
    "alpha of predictions": (
        lambda c: c.res.get_prediction(c.frame).summary_frame(alpha=1.0),
        ValueError,
        r"alpha is 1; it must lie in \(0, 1\)",
    ),
    "cov_type": (lambda c: c.res.cov_params("HC4"), ValueError, "cov_type is 'HC4'; choose one of 'sandwich', 'nonr"),
    "too few clusters": (
        lambda c: c.model.fit(ad.DFL([1.0] * 4 + [0.0] * 4), rounds=2).wald_test(np.eye(4), "cluster"),
        ValueError,
        "cov_type='CR1' tests fewer hypotheses together than there are clients that carry weight; there are 4 and 4",
    ),
    "predict, array": (
        lambda c: c.res.predict(c.X[:, :3]),
        ValueError,
        r"X has shape \(390, 3\); 4 columns are wanted",
    ),
    "predict, words": (lambda c: c.res.predict([["a"] * 4]), TypeError, "X must hold numbers"),
    "predict, NaN": (lambda c: c.res.predict(put(c.X, (5, 1), np.nan)), ValueError, "X has NaN .* in row 5"),
    "predict, formula": (
        lambda c: c.res.predict(c.frame[["x1", "x3"]]),
        ValueError,
        "X lacks the formula's variables 'x2'; its columns are 'x1', 'x3'",
    ),
    "predict, columns": (
        lambda c: build(c).fit(ad.DFL(), rounds=2).predict(c.frame[["x1", "x3"]]),
        ValueError,
        "X lacks the columns 'x2', 'x4'; the model was not built from a formula",
    ),
    "predict, offset": (lambda c: c.res.predict(c.frame, offset=[1.0]), ValueError, "offset has 1 entries, X has 390"),
    "predict, exposure": (
        lambda c: c.res.predict(c.frame, exposure=np.zeros(390)),
        ValueError,
        "exposure must be positive; row 0 has 0",
    ),
    # ---- files
    "no file": (lambda c: ad.load(c.folder / "fit.npz"), FileNotFoundError, "fit.npz"),
    "text file": (lambda c: ad.load(written(c.folder / "a.npz", b"x,y\n1,2\n")), ValueError, "a.npz does not hold res"),
    "empty file": (lambda c: ad.load(written(c.folder / "a.npz", b"")), ValueError, "a.npz does not hold results"),
    "broken archive": (
        lambda c: ad.load(written(c.folder / "a.npz", b"PK\3\4..")),
        ValueError,
        "does not hold results",
    ),
    "other archive": (lambda c: ad.load(archive(c.folder / "a.npz", x=1)), ValueError, "written by Results.save"),
    "pickled objects": (
        lambda c: ad.load(archive(c.folder / "a.npz", json=np.array([None]))),
        ValueError,
        "does not hold results",
    ),
    "other words": (lambda c: ad.load(archive(c.folder / "a.npz", json=as_json("[1]"))), ValueError, "does not hold"),
    "later format": (
        lambda c: ad.load(archive(c.folder / "a.npz", json=as_json('{"format": 99}'))),
        ValueError,
        "a.npz does not hold results written by Results.save: it does not end with the digest",
    ),
}


@pytest.mark.parametrize(("attempt", "error", "message"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_named(case, attempt, error, message):
    with pytest.raises(error, match=message):
        attempt(case)


def test_array_file_is_not_taken_for_results(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"a\.npy does not hold results written by Results\.save"):
        ad.load(tmp_path / "a.npy")


def test_level_never_seen_is_refused_in_predictions(frame, network):
    leveled = frame.assign(g=np.tile(["a", "b", "c"], 130))
    res = ad.DecentralizedGLM.from_formula("y ~ x1 + g", leveled, "client", network, "binomial").fit(ad.DFL())
    with pytest.raises(ValueError, match=r"the column 'g' of X has the level 'z', which .*; theirs are 'a', 'b', 'c'"):
        res.predict(pd.DataFrame({"x1": [0.0, 0.0], "g": ["a", "z"]}))


# ------------------------------------------------------------------ odd, but allowed


def separable(case):
    """Client h3 with a response that the sign of its first covariate tells."""
    return {"y": np.where(case.client == "h3", case.X[:, 1] > 0, case.y)}


def one_sided(case):
    """Client h3 with one outcome only."""
    return {"y": np.where(case.client == "h3", 1.0, case.y)}


def short(case):
    """Client h3 with three rows for four columns."""
    keep = (case.client != "h3") | (np.cumsum(case.client == "h3") <= 3)
    return {"X": case.X[keep], "y": case.y[keep], "client": case.client[keep]}


@pytest.mark.parametrize("family", ["binomial", "gaussian"])
@pytest.mark.parametrize(
    ("changes", "families", "message"),
    [
        pytest.param(
            separable, {"binomial"}, "a response that their covariates separate perfectly: 'h3'", id="separable"
        ),
        pytest.param(
            one_sided, {"binomial"}, "a response that their covariates separate perfectly: 'h3'", id="one-sided"
        ),
        pytest.param(short, {"binomial", "gaussian"}, "fewer rows than the 4 columns of X: 'h3'", id="p > n"),
    ],
)
def test_clients_without_a_minimum_of_their_own_are_named_and_fitted(case, family, changes, families, message):
    if family in families:
        with pytest.warns(
            ConditionWarning, match=rf"1 client\(s\) have {message}\. Their rows cannot show Condition 3"
        ):
            model = build(case, family=family, **changes(case))
    else:
        model = build(case, family=family, **changes(case))
    res = model.fit(ad.DFL())
    assert res.converged
    table = res.clients()
    for found in (res.params, res.client_params, res.bse, table.drop(columns=["verdict", "noise"])):
        assert np.isfinite(found.to_numpy(dtype=float)).all()
    # Labels have no noise level, nor has a client without rows to spare.
    known = np.isfinite(table["noise"])
    assert (known == (family == "gaussian") & (table["n"] > 4)).all()


def test_one_outcome_is_not_separable_without_a_constant(case):
    # Both signs of x occur among the rows of h3, so that no multiple of x is positive on all of them.
    model = build(case, X=case.X[:, 1:2], **one_sided(case))
    assert model.fit(ad.DFL()).converged


def test_network_of_two_parts_is_warned_of(case):
    parts = np.kron(np.eye(2), np.ones((4, 4)))
    with pytest.warns(ad.NetworkWarning, match="has 2 closed groups, which receive nothing from one another"):
        model = build(case, network=ad.Network.from_adjacency(parts, labels=case.network.labels))
    with pytest.warns(ad.ConvergenceWarning, match="in the limit, .* no shorter step helps; look for groups"):
        assert not model.fit(ad.DFL()).converged


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"max_rounds": 3}, "raise max_rounds"),
        ({"step": 0.5, "solver": "rounds"}, "the step leaves a bias; pass a smaller one"),
    ],
)
def test_run_that_does_not_converge_says_so(model, arguments, advice):
    with pytest.warns(
        ad.ConvergenceWarning, match=rf"numerical error is .* standard errors after \d+ rounds.*{advice}"
    ):
        res = model.fit(ad.DFL(), **arguments)
    assert not res.converged


def test_a_logistic_run_beyond_the_limit_of_stability_is_told(case):
    """Its gradients are bounded, so it never blows up; it never settles either."""
    with pytest.warns(ad.ConvergenceWarning, match=r"step=400 .* beyond the limit of stability"):
        case.model.fit(ad.DFL(), step=400, rounds=200)


def test_labels_that_a_file_cannot_give_back_are_refused(logistic, tmp_path):
    times = pd.date_range("2020-01-01", periods=len(logistic.labels))
    data = ad.ClientData.from_arrays(logistic.X, logistic.y, np.asarray(times)[np.asarray(logistic.client)])
    net = ad.networks.complete(len(times), labels=data.labels)
    res = ad.DecentralizedGLM(data, net, "binomial").fit(ad.DFL(), rounds=2)
    with pytest.raises(ValueError, match=r"label .* cannot be saved; use numbers or text"):
        res.save(tmp_path / "fit.npz")
