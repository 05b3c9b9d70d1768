"""Odd but legitimate problems: units, weights of any scale, clients that say nothing or are not heard."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose

import adfl_stats as ad


def rows(M=12, n=80, p=3, seed=0, family="gaussian"):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(M * n), rng.normal(size=(M * n, p - 1))])
    eta = X @ np.linspace(0.5, -0.5, p)
    y = eta + rng.normal(size=M * n) if family == "gaussian" else (rng.random(M * n) < 1 / (1 + np.exp(-eta))) * 1.0
    return X, y, np.repeat(np.arange(M), n)


def model(X, y, client, family="gaussian", network=None, **parts):
    data = ad.ClientData.from_arrays(X, y, client, **parts)
    return ad.DecentralizedGLM(data, network or ad.networks.complete(data.n_clients), family)


@pytest.mark.parametrize("seed", range(40))
def test_equal_weights_have_a_flat_spectrum(seed):
    """All eigenvalues of the preconditioned curvature are one here, which some eigen-solvers cannot stand."""
    X, y, client = rows(M=10, n=60, p=20, seed=seed)
    assert model(X, y, client).fit(ad.DFL()).converged


def test_units_of_the_columns_do_not_matter():
    X, y, client = rows()
    plain = model(X, y, client).fit()
    scaled = model(X * [1.0, 5e5, 1e-4], y, client).fit()
    assert_allclose(scaled.clients()["score"], plain.clients()["score"], rtol=1e-4)
    assert (scaled.clients()["df"] == 3).all()
    assert_allclose(scaled.client_weights, plain.client_weights, rtol=1e-3)
    assert_allclose(scaled.zvalues, plain.zvalues, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_scale_of_the_observation_weights_does_not_matter(family):
    X, y, client = rows(M=40, family="binomial")
    if family == "poisson":
        y = np.random.default_rng(1).poisson(np.exp(X @ [0.5, 0.1, -0.1])) * 1.0
    one = model(X, y, client, family).fit()
    many = model(X, y, client, family, weights=np.full(len(y), 20.0)).fit()
    assert (one.client_weights > 0.1).mean() > 0.95
    assert_allclose(many.client_weights, one.client_weights, atol=0.15)
    assert_allclose(many.bse, one.bse, rtol=0.02)


def test_overdispersed_counts_do_not_make_clients_suspicious():
    rng = np.random.default_rng(3)
    X, _, client = rows(M=40)
    y = rng.poisson(np.exp(X @ [1.0, 0.2, -0.2]) * rng.gamma(1.0, 1.0, len(X))).astype(float)
    assert (model(X, y, client, "poisson").fit().client_weights > 0.1).mean() > 0.9


def test_scale_with_a_tiny_client():
    rng = np.random.default_rng(5)
    sizes = np.array([100] * 9 + [1])
    X = rng.normal(size=(sizes.sum(), 9))
    y = X.sum(axis=1) + rng.normal(size=len(X))
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(10), sizes))
    with pytest.warns(ad.ConditionWarning):
        counted_once = ad.DecentralizedGLM(data, ad.networks.complete(10), weighting="client")
    res = counted_once.fit(ad.DFL())
    # Nearly all the weight of one client lies on its only row: about 90 rows are left in effect.
    assert 0.6 < res.scale < 1.6


def test_clients_whose_data_reach_nobody_are_named():
    A = np.zeros((6, 6))
    A[0, 1] = A[1, 0] = 1
    A[2:, 0] = 1
    X, y, client = rows(M=6)
    with pytest.warns(ad.NetworkWarning, match=r"4 client\(s\) have influence zero.*: 2, 3, 4, 5"):
        found = model(X, y, client, network=ad.Network.from_adjacency(A))
    res = found.fit(tolerance=0.2)
    assert_allclose(res.effective_clients, 2.0, rtol=1e-6)
    assert "The data of 2, 3, 4, 5 do not count" in res.summary().as_text()


def test_clients_with_little_influence_do_not_stop_the_rest():
    """A chain with rare feedback: the last client has some 1e-8 of the influence."""
    W = np.eye(20, k=-1) * 0.6 + np.eye(20, k=1) * 0.4
    W[0, 0], W[-1, -1] = 0.6, 0.4
    X, y, client = rows(M=20)
    net = ad.Network.from_weights(W)
    assert 20 * net.influence.min() < 0.01
    hardly = 20 * net.influence.to_numpy() < 0.02
    with pytest.warns(ad.NetworkWarning, match=r"little influence, M pi_m below 0\.02: .*let more") as record:
        found = model(X, y, client, network=net)
    assert str(record[0].message).startswith(f"{hardly.sum()} client(s) have")
    res = found.fit(tolerance=0.2, max_rounds=20_000)
    assert res.converged
    text = " ".join(res.summary().as_text().split())
    assert "Influence too small for balanced steps" in text
    assert f"{hardly.sum()} client(s) have little influence" in text


def test_what_trusted_clients_do_not_identify_is_named():
    X, y, client = rows(M=10)
    X = np.column_stack([X, (client == 3) * 1.0])
    weights = np.ones(10)
    weights[3] = 0.0
    found = model(X, y, client)
    with pytest.raises(ValueError, match="clients that carry weight do not identify 'x4'"):
        found.fit(ad.DFL(weights=weights))


def test_client_without_information_keeps_its_weight():
    X, y, client = rows(M=10)
    X = X[:, 1:] * (client != 4)[:, None]
    res = model(X, y, client).fit()
    assert np.isfinite(res.params).all()
    assert res.client_weights[4] == 1.0
    assert res.clients().loc[4, "df"] == 0


def test_pandas_rows_in_different_orders_are_refused():
    X, y, client = rows()
    frame, shuffled = pd.DataFrame(X), pd.Series(y).sample(frac=1, random_state=0)
    with pytest.raises(ValueError, match="X and y have different indexes; rows are matched by position"):
        ad.ClientData.from_arrays(frame, shuffled, client)


def test_init_is_matched_by_name():
    X, y, client = rows()
    found = model(X, y, client, names=["a", "b", "c"])
    first = found.fit(ad.DFL(), step=0.1, rounds=5)
    again = found.fit(ad.DFL(init=first.client_params[["c", "a", "b"]]), step=0.1, rounds=1)
    assert_allclose(again.params, found.fit(ad.DFL(init=first), step=0.1, rounds=1).params, rtol=1e-12)
    with pytest.raises(ValueError, match="init has the coefficients 'a', 'b', 'z'; the model's are 'a', 'b', 'c'"):
        found.fit(ad.DFL(init=pd.Series([0.0, 0.0, 0.0], index=["a", "b", "z"])), rounds=1)


def test_prediction_of_a_series_goes_by_name():
    X, y, client = rows()
    res = model(X, y, client, names=["a", "b", "c"]).fit()
    point = pd.Series({"c": 2.0, "a": 1.0, "b": -1.0})
    assert_allclose(res.predict(point).iloc[0], res.params["a"] - res.params["b"] + 2 * res.params["c"])


def test_small_step_is_not_taken_for_a_bias():
    X, y, client = rows()
    found = model(X, y, client)
    with pytest.warns(ad.ConvergenceWarning, match="raise max_rounds"):
        res = found.fit(ad.DFL(), step=1e-5, max_rounds=3000)
    assert res.rounds == 3000
    slow = found.fit(ad.DFL(), step=1e-3, solver="rounds")
    assert slow.converged
    assert np.abs((slow.params - sm.OLS(y, X).fit().params) / slow.bse).max() < 0.05


def test_medians_have_no_standard_errors():
    X, y, client = rows()
    res = model(X, y, client).fit(ad.Bridge("median"))
    assert res.bse.isna().all()
    assert np.isfinite(res.clients()["distance"]).all()
    assert "No standard errors" in res.summary().as_text()


def test_command_line_fit_is_the_librarys(tmp_path):
    """On a network where clients are not heard alike, so that balanced steps matter."""
    from adfl_stats.cli.main import main

    X, y, client = rows(M=8)
    pd.DataFrame({"y": y, "x": X[:, 1], "site": client}).to_csv(tmp_path / "data.csv", index=False)
    edges = pd.DataFrame(
        [(0, k) for k in range(1, 8)] + [((k + 1) % 8, k) for k in range(8)], columns=["source", "target"]
    )
    edges = edges.drop_duplicates()
    edges.to_csv(tmp_path / "edges.csv", index=False)
    call = ["fit", str(tmp_path / "data.csv"), "--formula", "y ~ x", "--client", "site"]
    assert main([*call, "--edges", str(tmp_path / "edges.csv"), "--save", str(tmp_path / "fit")]) == 0
    frame = pd.read_csv(tmp_path / "data.csv")
    net = ad.Network.from_edges(edges)
    assert net.se > 0.1
    res = ad.DecentralizedGLM.from_formula("y ~ x", frame, "site", net).fit()
    assert_allclose(ad.load(tmp_path / "fit").params, res.params, rtol=1e-9)


def test_unreadable_formula_is_a_value_error():
    X, y, client = rows()
    frame = pd.DataFrame({"y": y, "x": X[:, 1], "site": client})
    with pytest.raises(ValueError, match=r"formula is 'y ~ x \+'; it cannot be read"):
        ad.ClientData.from_frame(frame, "y ~ x +", "site")


def test_long_names_stay_apart_in_text_and_whole_elsewhere():
    X, y, client = rows()
    names = ["const", "a_name_that_is_far_too_long_b", "a_name_that_is_far_too_long_c"]
    summary = model(X, y, client, names=names).fit().summary()
    assert max(map(len, summary.as_text().splitlines())) < 80
    assert "_long_b" in summary.as_text()
    assert "_long_c" in summary.as_text()
    for text in (summary.as_html(), summary.as_csv(), summary.as_latex().replace(r"\_", "_")):
        assert all(name in text for name in names)
    # A per cent sign would turn the rest of its line into a comment; only the caption is one.
    assert all(line.lstrip().startswith("%") for line in summary.as_latex().splitlines() if "%" in line)


def test_modelled_level_is_told():
    X, y, client = rows(family="binomial")
    res = model(X, np.where(y > 0, "yes", "no"), client, "binomial").fit()
    assert "y = yes" in res.summary().as_text()
    assert res.params.iloc[0] > 0


def test_object_column_of_numbers_is_numbers():
    X, y, client = rows()
    assert ad.ClientData.from_arrays(X, y.astype(object), client).classes is None


def test_dropped_rows_are_told():
    X, y, client = rows()
    frame = pd.DataFrame({"y": y, "x": X[:, 1], "site": client})
    frame.loc[:6, "x"] = np.nan
    net = ad.networks.complete(12)
    res = ad.DecentralizedGLM.from_formula("y ~ x", frame, "site", net, missing="drop").fit()
    assert "7 rows with missing values were left out" in res.summary().as_text().replace("\n    ", " ")
