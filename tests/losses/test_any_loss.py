"""Losses of any kind: NumPy functions, JAX and PyTorch, against the built-in families and against differences."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats.losses import any_loss

M, n, p = 8, 30, 3
NET = ad.networks.erdos_renyi(M, 0.7, seed=2).metropolis()
HOW = {"step": 0.2, "rounds": 30}
RNG = np.random.default_rng(0)
X = np.concatenate([np.ones((M, n, 1)), RNG.normal(size=(M, n, p - 1))], axis=2)
Y = (RNG.uniform(size=(M, n)) < 1 / (1 + np.exp(-X @ [0.3, -1.0, 0.5]))).astype(float)
Y[-1] = 1.0 - Y[-1]


def logistic(m, theta, rng):
    rows = slice(None) if rng is None else rng.choice(n, 10, replace=False)
    x, y = X[m, rows], Y[m, rows]
    return x.T @ (1 / (1 + np.exp(-x @ theta)) - y) / len(y)


def logistic_loss(m, theta):
    eta = X[m] @ theta
    return np.mean(np.logaddexp(0.0, eta) - Y[m] * eta)


def numpy_losses(**options):
    return ad.Losses(logistic, np.full(M, n), np.zeros(p), loss=logistic_loss, **options)


def test_minibatches_are_those_of_the_seed(monkeypatch):
    """Call k of a fit draws client m's rows by default_rng([seed, m, k]), in every fit anew, and in any thread."""
    model = ad.DecentralizedModel(numpy_losses(seed=5), NET)
    found = model.fit(ad.DFL(), **HOW)
    theta, W = np.zeros((M, p)), NET.W.toarray()
    for k in range(HOW["rounds"]):
        at = W @ theta
        drawn = [logistic(m, at[m], np.random.default_rng([5, m, k + 1])) for m in range(M)]
        theta = at - HOW["step"] * np.array(drawn)
    assert_allclose(found.client_params, theta, rtol=1e-12, atol=1e-14)
    # Work as short as this has no threads otherwise.
    started = []
    monkeypatch.setattr(any_loss, "WORTH_THREADS", 0.0)
    monkeypatch.setattr(any_loss, "ThreadPoolExecutor", lambda k: started.append(k) or ThreadPoolExecutor(k))
    assert_array_equal(model.fit(ad.DFL(), **HOW, threads=2).client_params, found.client_params)
    assert len(started) >= HOW["rounds"]
    other = ad.DecentralizedModel(numpy_losses(seed=6), NET).fit(ad.DFL(), **HOW)
    assert np.abs(other.params - found.params).max() > 1e-4


def test_history_by_client_and_files(tmp_path):
    metrics = {"size": lambda theta: float(np.abs(theta).sum())}
    losses = numpy_losses(metrics=metrics, labels=list("abcdefgh"), names=["const", "x", "z"])
    model = ad.DecentralizedModel(losses, ad.networks.complete(M, labels=list("abcdefgh")))
    res = model.fit(ad.DFL(), **HOW, lines=5)
    assert res.history().shape == (5, M)
    assert res.history().columns.to_list() == list("abcdefgh")
    last = res.client_params.to_numpy()
    assert_allclose(res.history("loss").iloc[-1], [logistic_loss(m, last[m]) for m in range(M)], rtol=1e-12)
    assert_allclose(res.history("size").iloc[-1], np.abs(last).sum(axis=1), rtol=1e-12)
    res.save(tmp_path / "fit")
    again = ad.load(tmp_path / "fit")
    assert again.history("size").equals(res.history("size"))
    with pytest.raises(ValueError, match="accuracy"):
        res.history("accuracy")


def test_judged_by_all_rows():
    """Suspicion is of all rows, whatever the minibatches: the client with wrong labels has the largest, either way."""
    model = ad.DecentralizedModel(numpy_losses(), NET)
    for measure in ("norm", "loss"):
        res = model.fit(ad.ADFL(lam=4.0, measure=measure, stages=2), **HOW)
        assert res.client_weights.argmin() == M - 1
        assert res.client_weights.iloc[-1] < 0.5 * res.client_weights.iloc[:-1].min()
    gradient = np.linalg.norm([logistic(m, res.params.to_numpy(), None) for m in range(M)], axis=1)
    assert_allclose(res.clients()["gradient"], gradient, rtol=1e-10)


def test_warm_start_and_own_starts():
    start = RNG.normal(size=(M, p))
    losses = ad.Losses(logistic, np.full(M, n), start)
    assert_array_equal(losses.start(), start)
    first = ad.DecentralizedModel(numpy_losses(), NET).fit(**HOW)
    tuned = ad.DecentralizedModel(ad.Losses(logistic, np.full(M, n), first.client_params), NET).fit(step=1e-9, rounds=1)
    assert_allclose(tuned.client_params, NET.W @ first.client_params.to_numpy(), atol=1e-7)


def test_curvature_gives_standard_errors():
    def curvature(m, theta):
        mu = 1 / (1 + np.exp(-X[m] @ theta))
        return (X[m].T * (mu * (1 - mu))) @ X[m] / n

    losses = ad.Losses(lambda m, theta, rng: logistic(m, theta, None), np.full(M, n), np.zeros(p), curvature=curvature)
    res = ad.DecentralizedModel(losses, ad.networks.complete(M)).fit(step=1.0, rounds=400)
    assert not res.without_errors
    H = np.mean([curvature(m, res.params.to_numpy()) for m in range(M)], axis=0)
    g = np.array([logistic(m, res.params.to_numpy(), None) for m in range(M)])
    wanted = np.linalg.inv(H) @ (g.T @ g) @ np.linalg.inv(H) / M**2 * M / (M - 1)
    assert_allclose(res.cov_params(), wanted, rtol=1e-9)


@pytest.mark.parametrize("method", [ad.DFL(), ad.Bridge("median"), ad.ADFL(lam=2.0, init=np.zeros(p)), ad.Extra()])
def test_single_precision(method):
    """Rounds in single precision are those in double, to single precision."""
    single = numpy_losses(precision="float32")
    res = ad.DecentralizedModel(single, NET).fit(method, **HOW)
    assert res.record.theta.dtype == np.float32
    wanted = ad.DecentralizedModel(numpy_losses(), NET).fit(method, **HOW)
    assert_allclose(res.client_params, wanted.client_params, atol=2e-5)
    assert np.abs(res.client_params - wanted.client_params).to_numpy().max() > 0.0


def test_summary_of_many_parameters():
    losses = ad.Losses(lambda m, theta, rng: theta - m, np.ones(4), np.zeros(70_000))
    res = ad.DecentralizedModel(losses, ad.networks.complete(4)).fit(step=0.5, rounds=2)
    assert "The first 50 of 70000 parameters" in str(res.summary())
    assert res.bse.isna().all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sizes": np.zeros(M)}, "sizes must be one positive number"),
        ({"start": np.zeros((3, p))}, r"start has shape \(3, 3\)"),
        ({"gradient": 3}, "gradient is 3; a function is wanted"),
        ({"loss": 1.0}, "loss is 1.0; a function is wanted"),
        ({"gradient": lambda m, theta: theta}, r"gradient takes \(m, theta\); a function of the client's number"),
        ({"loss": lambda theta: 0.0}, r"loss takes \(theta\); a function of the client's number"),
        ({"batched": True, "gradient": lambda theta: theta}, r"gradient takes \(theta\); a function of the parameters"),
        ({"metrics": {"loss": np.sum}}, "metrics has the name 'loss'"),
        ({"sizes": []}, "of at least one client"),
        ({"seed": -1}, "seed"),
        ({"batch": 0}, "batch is 0"),
        ({"unravel": 2}, "unravel is 2; a function is wanted"),
        ({"product": "H"}, "product is 'H'; a function is wanted"),
        ({"metrics": 3}, "metrics is 3; a function is wanted"),
        ({"batched": "yes"}, "batched is 'yes'; True or False"),
    ],
)
def test_bad_losses(change, words):
    arguments = {"gradient": logistic, "sizes": np.full(M, n), "start": np.zeros(p), **change}
    with pytest.raises((TypeError, ValueError), match=words):
        ad.Losses(**arguments)


def test_gradients_of_another_shape_are_named():
    with pytest.raises(ValueError, match="gradient returned shape"):
        ad.DecentralizedModel(ad.Losses(lambda m, theta, rng: np.zeros(2), np.ones(4), np.zeros(3)), NET)


@pytest.mark.parametrize("method", [ad.ADFL(), ad.ADFL(lam=1.0, measure="score"), ad.TrimmedScores()])
def test_methods_that_need_curvature_refuse(method):
    with pytest.raises(ValueError, match="curvatures and scores"):
        ad.DecentralizedModel(numpy_losses(), NET).fit(method, **HOW)


def test_losses_are_asked_for_where_they_are_needed(glm):
    bare = ad.DecentralizedModel(ad.Losses(logistic, np.full(M, n), np.zeros(p)), NET)
    for method in (ad.UBAR(), ad.ADFL(lam=1.0, measure="loss")):
        with pytest.raises(ValueError, match="values of the losses"):
            bare.fit(method, **HOW)
    glm = ad.DecentralizedGLM(
        ad.ClientData.from_arrays(X.reshape(-1, p), Y.ravel(), np.repeat(np.arange(M), n)), NET, "binomial"
    )
    with pytest.raises(ValueError, match="for losses of your own"):
        glm.fit(ad.ADFL(lam=1.0, measure="loss"), **HOW)


# ------------------------------------------------------------------ JAX and PyTorch

METHODS = [
    ad.DFL(),
    ad.DFL(clip=0.1, local_steps=2),
    ad.ADFL(lam=2.0, measure="norm", init=ad.Bridge("median")),
    ad.ADFL(lam=2.0, measure="norm", init=ad.Bridge("median"), rule=ad.ClippedGossip()),
    ad.Oracle([M - 1]),
    ad.Bridge("median"),
    ad.Bridge("trimmed", b=1),
    ad.ClippedGossip(),
    ad.GeometricMedian(),
    ad.IOS(1),
    ad.NNA(1),
    ad.UBAR(),
    ad.Local(),
    ad.SLBRN(),
    ad.Extra(),
    ad.GradientTracking(),
]


@pytest.fixture(scope="module")
def glm():
    data = ad.ClientData.from_arrays(X.reshape(-1, p), Y.ravel(), np.repeat(np.arange(M), n))
    return ad.DecentralizedGLM(data, NET, "binomial")


@pytest.fixture(scope="module")
def in_jax():
    jnp = pytest.importorskip("jax.numpy")

    def loss(params, rows):
        eta = params["const"] + rows[0] @ params["slope"]
        return jnp.mean(jnp.logaddexp(0.0, eta) - rows[1] * eta)

    start = {"const": 0.0, "slope": np.zeros(p - 1)}
    return ad.losses.from_jax(loss, start, [(X[m, :, 1:], Y[m]) for m in range(M)])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_glm_in_jax_is_the_built_in_one(method, glm, in_jax):
    how = {"step": 0.05, "rounds": 40} if isinstance(method, ad.SLBRN) else HOW
    start = type(method)(**{**vars(method), "init": np.zeros(p)}) if method.init is None else method
    if isinstance(method, ad.ADFL):
        start = type(method)(**{**vars(method), "init": ad.Bridge("median", init=np.zeros(p))})
    wanted = glm.fit(start, **how).client_params
    found = ad.DecentralizedModel(in_jax, NET).fit(start, **how).client_params
    assert_allclose(found, wanted, rtol=0, atol=1e-10)


def test_jax_losses_names_and_minibatches(in_jax):
    assert in_jax.names == ["const", "slope[0]", "slope[1]"]
    theta = np.array([0.1, -0.4, 0.2])
    assert_allclose(in_jax.loss(2, theta), logistic_loss(2, theta), rtol=1e-12)
    # Gradients by differences.
    step = 1e-5 * np.eye(p)
    differences = [(in_jax.loss(2, theta + e) - in_jax.loss(2, theta - e)) / 2e-5 for e in step]
    assert_allclose(in_jax.whole_gradients(np.tile(theta, (M, 1)))[2], differences, rtol=1e-7)


def test_estimates_as_the_users_pytree(in_jax):
    found = in_jax.unravel(np.array([0.1, -0.4, 0.2]))
    assert_allclose(found["const"], 0.1, rtol=1e-15)
    assert_allclose(found["slope"], [-0.4, 0.2], rtol=1e-15)


def test_jax_rows_of_clients_must_agree():
    pytest.importorskip("jax")
    with pytest.raises(ValueError, match=r"client 'b' have \[4, 5\] rows"):
        ad.losses.from_jax(None, np.zeros(1), {"a": (np.ones(3),), "b": (np.ones(5), np.ones(4))})


def test_torch_module_is_the_built_in_regression():
    torch = pytest.importorskip("torch")
    module, loss = torch.nn.Linear(p - 1, 1).double(), torch.nn.functional.binary_cross_entropy_with_logits
    held = {m: (torch.as_tensor(X[m, :, 1:]), torch.as_tensor(Y[m][:, None])) for m in range(M)}
    losses = ad.losses.from_torch(module, loss, held, metrics={"bias": lambda net: net.bias.item()})
    assert losses.names == ["weight[0, 0]", "weight[0, 1]", "bias[0]"]
    start = np.zeros(p)
    found = ad.DecentralizedModel(losses, NET).fit(ad.DFL(init=start), **HOW)
    data = ad.ClientData.from_arrays(X.reshape(-1, p), Y.ravel(), np.repeat(np.arange(M), n))
    wanted = ad.DecentralizedGLM(data, NET, "binomial").fit(ad.DFL(init=start), **HOW).client_params.to_numpy()
    assert_allclose(found.client_params.to_numpy()[:, [2, 0, 1]], wanted, atol=1e-10)
    assert_allclose(found.history("bias").iloc[-1], wanted[:, 0], atol=1e-10)
    module.load_state_dict(losses.unravel(found.record.params))
    assert_allclose(module.weight.detach().numpy()[0], found.params.to_numpy()[:2], rtol=1e-12)
    assert found.record.theta.dtype == np.float64
    single = torch.nn.Linear(p - 1, 1)
    assert ad.losses.from_torch(single, loss, held).dtype == np.float32
    assert ad.losses.from_torch(single, loss, held, precision="float64").dtype == np.float64
    with pytest.raises(ValueError, match="nothing to fit"):
        ad.losses.from_torch(torch.nn.ReLU(), loss, held)
    minibatch = ad.losses.from_torch(module, loss, held, batch=10)
    assert np.abs(minibatch.gradients(np.zeros((M, 1, p))) - losses.gradients(np.zeros((M, 1, p)))).max() > 1e-3


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_missing_packages_are_named(name, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, name, None)
    make = {"jax": ad.losses.from_jax, "torch": ad.losses.from_torch}[name]
    with pytest.raises(ImportError, match=rf"pip install 'adfl-stats\[{name}\]'"):
        make(None, None, [])
