"""What the fuzzers found: each was an error without its argument's name, a quiet conversion or the process's end."""

import re

import numpy as np
import pandas as pd
import pytest

import adfl_stats as ad
from adfl_stats import networks

HUGE = 10**400
RAGGED = [[1, 2], [3]]
DATES = np.array(["2020-01-01"], dtype="M8[D]")
RNG = np.random.default_rng(0)
X, Y, CLIENT = RNG.normal(size=(48, 2)), RNG.normal(size=48), np.repeat(np.arange(4), 12)
FRAME = pd.DataFrame({"y": Y, "x": X[:, 0], "site": CLIENT})


def by_frame(**roles):
    return lambda: ad.ClientData.from_frame(FRAME, "y ~ x", **{"client": "site"} | roles)


def parts(**changes):
    return lambda: ad.ClientData(
        **{"X": X, "y": Y, "offsets": np.arange(0, 49, 12), "labels": pd.RangeIndex(4), "names": ["a", "b"]} | changes
    )


def simulated(**sizes):
    usual = {"M": 4, "n": 10, "p": 2, "abnormal": 0.25, "corruption": "BF", "seed": 1}
    return lambda: ad.simulate.paper_linear(**usual | sizes)


def names(given):
    return lambda: ad.ClientData.from_arrays(X, Y, CLIENT, names=given)


def a_column():
    return ad.ClientData.from_frame(pd.Series(list("ab"), dtype="category"), "y ~ x", client="site")


def fit(**options):
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, Y, CLIENT), networks.complete(4))
    return lambda: model.fit(ad.DFL(), **{"step": 0.05, "rounds": 3} | options)


FIT = fit()()


def contrast(hypotheses):
    return lambda: FIT.wald_test(hypotheses)


CASES = {
    "nested lists of roles": (by_frame(client=[[1, 2], [3]]), TypeError, "client is a list with entries of different"),
    "missing value as a role": (by_frame(weights=pd.NA), TypeError, "weights is <NA>, a missing value; name a column"),
    "missing time as a role": (by_frame(offset=pd.NaT), TypeError, "offset is NaT, a missing value"),
    "names without a length": (parts(names=np.array(1.0)), TypeError, "names is a ndarray; pass a list"),
    "nested lists of lambda": (lambda: ad.ADFL(lam=[[1, 2], [3]]), TypeError, "lam must be a number, got [1, 2]"),
    "imaginary lambda": (lambda: ad.ADFL(lam=[np.complex128(1 + 2j)]), TypeError, "lam must be a number, got np.compl"),
    "masked lambda": (lambda: ad.ADFL(lam=np.ma.masked_less([1.0, -1.0], 0.0)), TypeError, "lam must be a number"),
    "edges, no file": (lambda: ad.Network.from_edges("none"), FileNotFoundError, "edges is 'none': No such file"),
    "edges, a folder": (lambda: ad.Network.from_edges("."), IsADirectoryError, "edges is '.', a folder"),
    "results, no file": (lambda: ad.load("none.npz"), FileNotFoundError, "path is 'none.npz': No such file"),
    "huge number of clients": (lambda: networks.erdos_renyi(HUGE, 0.5), ValueError, "M is 10000000000000000000... (4"),
    "more clients than bits": (lambda: networks.directed_circle(2**31, 2), ValueError, "M is 2147483648; it must be"),
    "vast random network": (lambda: networks.erdos_renyi(10**6, 0.6), ValueError, "q is 0.6: that makes about 6e+11 e"),
    "vast degree": (lambda: networks.fixed_degree(10**6, 10**5), ValueError, "D is 100000: that makes about 1e+11"),
    "vast blocks": (lambda: networks.stochastic_block([10**6], 0.5, 0), ValueError, "p_in is 0.5 and p_out is 0: "),
    "vast discs": (lambda: networks.random_geometric(10**6, 0.5), ValueError, "radius is 0.5: that makes about 2e+11"),
    "vast small world": (lambda: networks.small_world(10**6, 10**4, 0.1), ValueError, "k is 10000: that makes about"),
    "vast scale-free network": (lambda: networks.scale_free(10**6, 10**4), ValueError, "m is 10000: that makes about"),
    "a list of networks": (lambda: networks.schedule(3), TypeError, "networks is 3 (int); give a list of Network obje"),
    "a list of blocks": (lambda: networks.stochastic_block(None, 1, 1), TypeError, "sizes is None (NoneType); give a"),
    "methods of no kind": (lambda: ad.Study(np.array("DFL")), TypeError, "methods is array('DFL', dtype='<U3') (ndarr"),
    "nested shares": (lambda: ad.Study(shares=[[1, 2], [3]]), TypeError, "shares must be a number, got [1, 2]"),
    "unknown sizes": (lambda: ad.Study(sizes={"M": 9, "a": 1}), ValueError, "sizes has 'a', which designs by name do"),
    "a class as a design": (lambda: ad.Study(designs=ad.DFL), TypeError, "designs has 'DFL', a ABCMeta; give 'gau"),
    "a larger model of dates": (lambda: FIT.score_test(DATES), TypeError, "larger is a ndarray; pass a Decentralized"),
    "vast design": (lambda: ad.design(1e-300, sigma=1e300), ValueError, "sigma / se is inf; it must lie in [0, 1e+09]"),
    "unread hypothesis": (contrast("x9 = 0"), ValueError, "r_matrix is 'x9 = 0', which cannot be read (unrecognized"),
    "contrasts of no size": (contrast(np.ones(7)), ValueError, "which cannot be read (wrong shape for coefs); give te"),
    "imaginary contrasts": (contrast(np.ones(2) * 1j), TypeError, "r_matrix must hold numbers, and holds complex numb"),
    "contrasts with NaN": (contrast([np.nan, 1.0]), ValueError, "which cannot be read (it has numbers that are not fi"),
    "nested new rows": (lambda: FIT.predict([[1, 2], [3]]), TypeError, "X must hold numbers, and has entries of diffe"),
    "rounds for ever": (fit(rounds=2**62), ValueError, "rounds is 4611686018427387904; it must be at most 1000000000"),
    "gossip for ever": (lambda: networks.complete(4).gossip(2**62), ValueError, "k is 4611686018427387904; it must"),
    "vast simulation": (simulated(p=2**40), ValueError, "p is 1099511627776; it must be at most 100000000"),
    "vast clients": (simulated(n=2**45), MemoryError, "n is 35184372088832: 4 clients and 2 columns take 2048.0 TiB"),
    "an array as a file": (lambda: ad.load(X), TypeError, "path is a ndarray; give the name of a file, as text or a"),
    "a network from bytes": (lambda: ad.Network.from_file(b"a"), TypeError, "path is a bytes; give the name of a file"),
    "nested rows": (lambda: ad.ClientData.from_arrays(RAGGED, Y, CLIENT), TypeError, "X must hold numbers, and has"),
    "nested response": (lambda: ad.ClientData.from_arrays(X, RAGGED, CLIENT), TypeError, "y must hold numbers, and h"),
    "nested penalty": (lambda: ad.Ridge(RAGGED), TypeError, "c must hold numbers, and has entries of different"),
    "nested sizes": (simulated(n=RAGGED), TypeError, "n must hold numbers, and has entries of dif"),
    "names of no size": (names(np.array("a")), TypeError, "names is array('a', dtype='<U1'); give a list with one na"),
    "a column as a frame": (a_column, TypeError, "frame is a Series; pass a pandas, polars or Arrow table"),
    "a function as a design": (lambda: ad.Study(designs=len), TypeError, "designs has 'len', a builtin_function_or_m"),
    "a function as a corruption": (simulated(corruption=len), TypeError, "corruption is <built-in function len>; "),
    "lists as names": (parts(names=RAGGED), TypeError, "names has [1, 2], [3]; pass a list with the name of each"),
    "a class as a corruption": (simulated(corruption=ad.DFL), TypeError, "the corruption function returned a DFL; wan"),
    "a file without a name": (lambda: FIT.save(""), IsADirectoryError, "path is '', a folder; give a file"),
    "a table as a title": (lambda: FIT.report("a.html", title=FRAME), TypeError, "title is    "),
    "a number to add": (lambda: FIT.report("a.html", also=3), TypeError, "also is 3 (int); give a list of results to"),
    "an array as a flag": (lambda: FIT.bootstrap(4, progress=Y), TypeError, "progress is array("),
    "huge number of threads": (fit(threads=HUGE), ValueError, "threads is 10000000000000000000... (401 digits)"),
}  # fmt: skip


@pytest.mark.parametrize(("attempt", "error", "words"), CASES.values(), ids=CASES.keys())
def test_refusals_name_the_argument(attempt, error, words):
    with pytest.raises(error, match=re.escape(words)):
        attempt()


def test_a_power_that_chance_has_needs_no_shift():
    assert (FIT.detection_limit(power=1e-300)["bias"] == 0.0).all()


def test_many_combination_steps_are_a_power():
    net = networks.erdos_renyi(12, 0.3, seed=3)
    np.testing.assert_allclose(net.gossip(13).W.toarray(), np.linalg.matrix_power(net.W.toarray(), 13), atol=1e-14)


def test_seeds_may_be_of_any_length():
    assert networks.erdos_renyi(20, 0.5, seed=2**100).n_clients == 20


def test_more_threads_than_the_system_has_do_not_end_the_process():
    # Work enough for threads: libgomp would ask the system for 20,000 of them, and give up.
    rng = np.random.default_rng(1)
    M, n = 20_000, 30
    data = ad.ClientData.from_arrays(rng.normal(size=(M * n, 8)), rng.normal(size=M * n), np.repeat(np.arange(M), n))
    model = ad.DecentralizedGLM(data, networks.directed_circle(M, 3))
    many, one = (model.fit(ad.DFL(), step=0.1, rounds=2, threads=threads) for threads in (10**6, 1))
    np.testing.assert_array_equal(many.client_params, one.client_params)


@pytest.mark.filterwarnings("ignore::adfl_stats.AdflWarning")
def test_an_estimate_whose_scores_overflow_is_said_to_be_one():
    rng = np.random.default_rng(3)
    design = np.column_stack([np.ones(48), 1e3 * rng.normal(size=48)])
    data = ad.ClientData.from_arrays(design, rng.gamma(2.0, size=48), CLIENT)
    res = ad.DecentralizedGLM(data, networks.complete(4), "gamma").fit(ad.DFL(), step=0.02, rounds=1)
    with pytest.raises(ad.DivergenceError, match="at this estimate the clients' scores overflow"):
        res.summary()


@pytest.mark.filterwarnings("ignore::adfl_stats.AdflWarning")
def test_an_estimate_at_the_end_of_the_range_of_means_is_said_to_be_one():
    rng = np.random.default_rng(2)
    design = np.column_stack([np.ones(48), 1e3 * rng.normal(size=48)])
    data = ad.ClientData.from_arrays(design, rng.integers(2, size=48).astype(float), CLIENT)
    res = ad.DecentralizedGLM(data, networks.complete(4), "binomial").fit(ad.DFL(), step=0.2, rounds=3)
    with pytest.raises(
        ValueError, match=r"means may be at the end of their range: .* after a step that is too large, give a smaller"
    ):
        res.summary()


@pytest.mark.parametrize("term", ["C(number)", "C(`number`)", "name", "x * name"])
def test_a_factor_with_a_level_for_each_row_is_refused_by_its_name(term):
    """Some thousand columns of indicators took minutes, without a word."""
    line = np.arange(1000.0)
    frame = pd.DataFrame({"y": line**2, "x": np.sin(line), "site": np.repeat(list("abcd"), 250)})
    frame = frame.assign(number=range(1000), name=[f"p{i}" for i in range(1000)])
    with pytest.raises(
        ValueError, match=r"'(number|name)' has 1000 levels in the 1000 rows of the frame, one for each"
    ):
        ad.ClientData.from_frame(frame, f"y ~ {term}", client="site")


def test_levels_that_are_computed_are_not_those_of_the_column():
    frame = pd.DataFrame({"y": np.arange(1000.0), "x": np.arange(1000.0), "site": np.repeat(list("abcd"), 250)})
    for term in ("C(x // 250)", "C(np.floor(x / 250))"):
        assert len(ad.ClientData.from_frame(frame, f"y ~ {term}", client="site").names) == 4


@pytest.mark.parametrize("formula", ["y ~ pair", "pair ~ y"])
def test_columns_of_lists_are_named(formula):
    frame = pd.DataFrame({"y": np.arange(6.0), "site": list("aabbcc"), "pair": [[1, 2]] * 6})
    with pytest.raises(ValueError, match="the column 'pair' of the frame holds lists or arrays"):
        ad.ClientData.from_frame(frame, formula, client="site")


def test_more_columns_than_rows_are_counted():
    rng = np.random.default_rng(0)
    data = ad.ClientData.from_arrays(rng.normal(size=(20, 25)), rng.normal(size=20), np.repeat(np.arange(5), 4))
    with pytest.raises(ValueError, match="over all 20 rows: there are 25 of them, and any 21 depend on one another"):
        ad.DecentralizedGLM(data, ad.networks.complete(5))


def test_beside_a_large_mean_it_is_not_the_constant_that_is_named():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"y": rng.normal(size=60), "x": rng.normal(1e9, 1, 60), "site": np.repeat(list("abc"), 20)})
    net = ad.networks.complete(3, labels=list("abc"))
    with pytest.raises(ValueError, match="the column 'x' of X is nearly a linear combination"):
        ad.DecentralizedGLM.from_formula("y ~ x", frame, client="site", network=net)
