"""`Study`: its factors, its numbers, and that nothing is lost or changed by workers, kills and resumption."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from pandas.testing import assert_frame_equal

import adfl_stats as ad
from adfl_stats.simulate import folder as folders

SIZES = {"M": 20, "n": 40, "p": 3}


def small(methods=("DFL",), **choices):
    """A study of small data sets on one network."""
    usual = {"corruptions": ["BF"], "shares": [0.0, 0.2], "sizes": SIZES, "replicates": 3, "inference": False}
    return ad.Study(methods, **{**usual, **choices})


def numbers(study):
    """What must be the same to the last bit: everything but the times."""
    return study.draws().drop(columns="seconds")


# ------------------------------------------------------------------ factors


def clustered(abnormal, corruption, seed, M, n, slope):
    """A design of the user's own."""
    sim = ad.simulate.glm_design(
        M=M, n=n, p=2, abnormal=abnormal, corruption=corruption, theta0=[slope, 0.0], seed=seed
    )
    assert isinstance(seed, np.random.Generator)
    return sim


def shrink(X, y, rng):
    return X, 0.5 * y


def test_everything_can_be_the_users_own():
    labels = [f"site {k}" for k in (3, 1, 2, *range(4, 21))]
    net = ad.networks.directed_circle(20, 4, labels=labels)
    study = ad.Study(
        {"told": lambda abnormal: ad.DFL(weights=1.0 - abnormal), "median": ad.Bridge("median"), "plain": ad.DFL()},
        networks={"ours": net, "function": lambda M: ad.networks.complete(M)},
        designs={"mine": clustered},
        corruptions={"half": shrink, "liars": ad.attacks.SignFlip([], scale=3.0)},
        shares=[0.2],
        sizes={"M": 20, "n": 60, "slope": [1.0, 2.0]},
        replicates=2,
        fit={"step": 0.1, "rounds": 150},
        inference=False,
    ).run()
    table = study.to_frame()
    assert len(table) == 2 * 2 * 2 * 3
    assert list(table.columns[:8]) == ["network", "design", "corruption", "share", "M", "n", "slope", "method"]
    # One fit by hand: the second replicate of the shrunken responses on the user's network.
    setting = next(s for s in study.settings if s.factors["network"] == "ours" and s.factors["corruption"] == "half")
    sim = setting.draw(1, 1)
    named = np.array(labels)[sim.client]
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, named), net)
    res = model.fit(ad.DFL(), step=0.1, rounds=150)
    normal = ~sim.abnormal
    mse = ((res.client_params.loc[np.array(labels)[normal]].to_numpy() - sim.theta0) ** 2).sum(axis=1).mean()
    draws = study.draws().query("network == 'ours' and corruption == 'half' and replicate == 1 and slope == 1")
    assert_allclose(draws.set_index("method").loc["plain", "mse"], mse, rtol=1e-12)
    # Shrunken responses on a fifth of the rows shrink least squares by a tenth: squared bias .01 slope^2 = .04 for
    # slope 2. The slope's standard error is at most sqrt(1.5 / 1200) = .035 in a data set: 2 x .2 x .035 / sqrt(2) = .01.
    plain = table.query("method == 'plain' and corruption == 'half'").set_index(["network", "slope"])
    assert_allclose(plain.loc[("ours", 2.0), "bias2"], 0.04, atol=0.03)
    # Liars leave the data clean: told of them, the estimate ignores their data but still hears their messages.
    liars = table.query("corruption == 'liars' and slope == 1 and network == 'ours'").set_index("method")
    assert liars.loc["median", "mse"] < liars.loc["plain", "mse"]


def test_networks_share_their_data_and_other_settings_do_not():
    study = small(networks=["circle-5", "complete"], shares=[0.2, 0.3])
    first, second, third, fourth = (setting.draw(0, 1) for setting in study.settings)
    assert np.array_equal(first.X, third.X)
    assert np.array_equal(second.y, fourth.y)
    assert not np.array_equal(first.X, second.X)


def test_tables_and_objects_are_the_same_study():
    tables = small(
        {"b": {"method": "Bridge", "rule": "trimmed", "b": 1}, "o": {"method": "oracle", "balance": True}},
        networks={"w": {"generator": "small_world", "k": 4, "beta": 0.2}},
        designs={"d": {"family": "gaussian", "covariates": "heterogeneous", "slope": 2}},
        corruptions={"c": {"kind": "Composed", "parts": ["OOD", {"kind": "Shift", "size": 9}]}},
        shares=[0.2],
    ).run()
    objects = small(
        {"b": ad.Bridge("trimmed", b=1), "o": lambda abnormal: ad.Oracle(abnormal, balance=True)},
        networks={"w": ad.networks.small_world(20, 4, 0.2, seed=1)},
        designs={"d": partial(ad.simulate.glm_design, covariates="heterogeneous", theta0=[2.0, 0.0, 0.0])},
        corruptions={"c": ad.simulate.Composed("OOD", ad.simulate.Shift(9.0))},
        shares=[0.2],
    ).run()
    assert_frame_equal(numbers(tables), numbers(objects), check_exact=True)


def test_a_share_of_one_half_is_warned_about():
    with pytest.warns(ad.ConditionWarning, match=r"shares has 0.5: where half of the clients or more are abnormal"):
        study = small(shares=[0.2, 0.5])
    assert [int(setting.draw(0, 1).abnormal.sum()) for setting in study.settings] == [4, 10]
    # Flipped signs on half of the rows leave nothing of the slope.
    table = study.run().to_frame().set_index("share")
    assert_allclose(table.loc[0.5, "bias2"], 1.0, atol=4 * table.loc[0.5, "bias2_se"])


def test_diverged_fits_are_counted_and_have_no_numbers():
    def diverges(abnormal):
        return ad.SLBRN("median", force=True)

    study = small({"SLBRN": diverges, "DFL": ad.DFL()}, shares=[0.2], fit={"step": 0.9, "rounds": 400}).run()
    table = study.to_frame().set_index("method")
    assert table.loc["SLBRN", "failed"] > 0
    assert np.isnan(table.loc["SLBRN", "mse"])
    assert table.loc["DFL", "failed"] == 0


# ------------------------------------------------------------------ numbers


@pytest.fixture(scope="module")
def gaussian():
    """The default fit and DFL beside the oracle, few clients in few settings."""
    sizes = {"M": 20, "n": [30, 120], "p": 4}
    return ad.Study(["fit", "DFL"], corruptions=["BF"], shares=[0.2], sizes=sizes, replicates=24).run()


@pytest.fixture(scope="module")
def plain():
    """DFL beside the oracle, without inference: many settings in little time."""
    sizes = {"M": 20, "n": [30, 120], "p": 4}
    shares = [0.0, 0.1, 0.2, 0.4]
    return ad.Study(["DFL"], corruptions=["BF"], shares=shares, sizes=sizes, replicates=40, inference=False).run()


def test_oracle_error_in_closed_form(plain):
    # sigma^2 tr E(X'X)^-1 = p / (N - p - 1) for standard normal covariates (mean of an inverse Wishart matrix).
    table = plain.to_frame()
    rows = table["n"] * (20 - np.floor(20 * table["share"] + 1e-9))
    z = (table["oracle_mse"] - 4 / (rows - 4 - 1)) / table["oracle_mse_se"]
    assert len(z) == 8
    assert (z.abs() < 3.5).all()
    # Independent settings: the sum of squares is chi-square with 8 degrees of freedom, if the errors are right.
    assert 1.0 < (z**2).sum() < 26.1


def test_bias_and_variance_add_up(plain):
    table = plain.to_frame()
    # Signs flipped on a share of the rows: (1 - 2 share) theta_0, and ||theta_0|| = 1.
    z = (table["bias2"] - (2 * table["share"]) ** 2) / table["bias2_se"].clip(lower=1e-3)
    assert (z.abs() < 4).all()
    # Of the network's mean, the mean squared error is squared bias plus variance; clients are close to it.
    total = table["bias2"] + table["variance"]
    assert_allclose(total, table["mse"], rtol=0.12)


def test_standard_errors_are_those_of_the_means(gaussian):
    draws = gaussian.draws().query("method == 'fit' and share == 0.2 and n == 30")
    line = gaussian.to_frame().query("method == 'fit' and share == 0.2 and n == 30").iloc[0]
    for name in ("mse", "gap", "coverage", "coverage_client", "length", "fdr", "power", "consensus", "rounds"):
        assert_allclose(line[name], draws[name].mean(), rtol=1e-12)
        assert_allclose(line[f"{name}_se"], draws[name].std() / np.sqrt(24), rtol=1e-12)
    # 24 data sets of 4 intervals each.
    for kind in ("coverage", "coverage_sandwich", "coverage_client"):
        assert abs(line[kind] - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 96)
    # The oracle's standard error of a slope is about 1 / sqrt(rows): intervals are 2 x 1.96 of these.
    assert_allclose(line["length"], 3.92 / np.sqrt(16 * 30), rtol=0.1)
    assert line["good_aside"] < 0.05
    # The fit leaves out hardly anybody: it is a small part of a standard error away from the oracle.
    assert line["gap"] < 0.3 < gaussian.to_frame().query("method == 'DFL' and share == 0.2")["gap"].min()


def test_jackknife_of_the_variance():
    # Of normal errors the variance has standard error v sqrt(2 / (R - 1)) in each coefficient.
    from adfl_stats.simulate.monte_carlo import table_of

    rng = np.random.default_rng(5)
    errors = [list(row) for row in 0.3 + rng.normal(size=(2000, 3))]
    rows = pd.DataFrame({"setting": 1, "method": "DFL", "oracle_mse": 1.0, "mse": 2.0, "error": errors})
    line = table_of(rows, ["setting"]).iloc[0]
    assert_allclose(line["variance_se"], np.sqrt(3 * 2 / 1999), rtol=0.1)
    assert_allclose(line["variance"], 3.0, atol=4 * line["variance_se"])
    assert_allclose(line["bias2"], 3 * 0.09, atol=4 * line["bias2_se"])
    # d||m||^2 = 2 m'dm, and each coordinate of the mean has variance 1 / R.
    assert_allclose(line["bias2_se"], 2 * np.sqrt(3 * 0.09 / 2000), rtol=0.1)


def test_slopes_beside_the_theory(gaussian, plain):
    rates = plain.slopes("N").set_index(["share", "method"])
    fit = gaussian.slopes("N").set_index("method").loc["fit"]
    assert fit["theory"] == rates.loc[(0.2, "oracle"), "theory"] == -1
    assert rates.loc[(0.2, "DFL"), "theory"] == 0
    assert rates.loc[(0.0, "DFL"), "theory"] == -1
    # Oracle and fit: p / (N - p - 1) is -1 in N but for -5 / N; 4 standard errors.
    near = pd.concat([rates.loc[[(0.0, "oracle"), (0.2, "oracle"), (0.0, "DFL")]], fit.to_frame().T]).astype(
        {"slope": float, "theory": float, "se": float}
    )
    assert ((near["slope"] - near["theory"]).abs() < 4 * near["se"] + 0.02).all()
    assert rates.loc[(0.4, "DFL"), "slope"] > -0.1
    by_share = plain.slopes("share").set_index(["n", "method"])
    assert by_share.loc[(120, "DFL"), "theory"] == 2
    assert abs(by_share.loc[(120, "DFL"), "slope"] - 2) < 0.1
    assert_allclose(by_share["upper"] - by_share["slope"], 1.959964 * by_share["se"], rtol=1e-6)
    with pytest.raises(ValueError, match="by is 'M', which has fewer than two positive values"):
        gaussian.slopes("M")
    with pytest.raises(ValueError, match="by is 'D'; choose one of 'N', 'share', 'M', 'n', 'p'"):
        gaussian.slopes("D")
    with pytest.raises(ValueError, match="value is 'size'; choose one of 'efficiency'"):
        gaussian.slopes("N", "size")


# ------------------------------------------------------------------ workers, kills, resumption


def test_the_same_bits_for_any_workers_and_backend():
    from joblib import parallel_config

    alone = numbers(small(["fit", "BRIDGE-M"], inference=True).run())
    assert_frame_equal(numbers(small(["fit", "BRIDGE-M"], inference=True).run(jobs=2)), alone, check_exact=True)
    with parallel_config(backend="threading", n_jobs=3):
        assert_frame_equal(numbers(small(["fit", "BRIDGE-M"], inference=True).run()), alone, check_exact=True)
    # Neither the other settings nor the other methods matter.
    part = numbers(small(["BRIDGE-M"], shares=[0.2], inference=True).run())
    same = alone.query("method == 'BRIDGE-M' and share == 0.2").reset_index(drop=True)
    assert_frame_equal(part, same, check_exact=True)


def test_dask_and_a_killed_worker(tmp_path):
    """A worker that dies takes its data sets with it; the cluster runs them elsewhere."""
    distributed = pytest.importorskip("distributed")
    from joblib import parallel_config

    alone = numbers(small(replicates=6).run())

    def dies_once(abnormal):
        # The first to come here makes the file, and dies with it.
        try:
            (tmp_path / "died").touch(exist_ok=False)
        except FileExistsError:
            return ad.DFL()
        os.kill(os.getpid(), signal.SIGKILL)

    config = {"distributed.comm.timeouts.connect": "20s"}
    import dask

    with dask.config.set(config), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
        with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
            with parallel_config(backend="dask"):
                study = small({"DFL": dies_once}, replicates=6).run()
    assert (tmp_path / "died").exists()
    assert_frame_equal(numbers(study), alone, check_exact=True)


def test_a_dead_worker_loses_nothing_that_was_finished(tmp_path):
    def dies(abnormal):
        if not (tmp_path / "calm").exists() and len(list((tmp_path / "out").glob("cells/*/*.json"))) >= 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return ad.DFL()

    study = small({"DFL": dies}, replicates=6)
    with pytest.raises(RuntimeError, match="a worker process died, .* What was finished is kept: run the study again"):
        study.run(jobs=2, out=tmp_path / "out")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("cells/*/*.json")}
    assert len(kept) >= 2
    (tmp_path / "calm").touch()
    study.run(jobs=2, out=tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert_frame_equal(numbers(study), numbers(small(replicates=6).run()), check_exact=True)


SCRIPT = """
import sys
import adfl_stats as ad
ad.Study(["DFL"], corruptions=["BF"], shares=[0.0, 0.2], sizes={"M": 20, "n": 40, "p": 3}, replicates=30,
         inference=False).run(jobs=int(sys.argv[2]), out=sys.argv[1])
"""


def kill_after(seconds, out, jobs):
    """Start the study, kill it and its workers, and return whether it was still running."""
    command = [sys.executable, "-c", SCRIPT, str(out), str(jobs)]
    process = subprocess.Popen(command, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        process.wait(timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_any_point_and_resumed(tmp_path, kills):
    rng = np.random.default_rng(kills)
    out = tmp_path / "out"
    began = time.perf_counter()
    assert not kill_after(300, tmp_path / "whole", 1)
    usual = time.perf_counter() - began
    for _ in range(kills):
        kill_after(rng.uniform(0.2, 1.0) * usual, out, jobs=int(rng.integers(1, 3)))
        for path in out.glob("cells/*/[0-9]*.json"):
            # Whatever was killed, no file is half written.
            assert len(json.loads(path.read_text())) == 1
        if (out / "table.csv").exists():
            # It came to its end; begin anew, so that the next kill meets work.
            for path in [*out.glob("cells/*/*.json"), out / "table.csv"]:
                path.unlink()
    assert not kill_after(300, out, jobs=1)
    resumed, whole = (pd.read_csv(folder / "draws.csv").drop(columns="seconds") for folder in (out, tmp_path / "whole"))
    assert len(whole) == 60
    assert_frame_equal(resumed, whole, check_exact=True)


def test_interrupted_in_one_process(tmp_path, monkeypatch):
    calls = []

    def impatient(abnormal):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return ad.DFL()

    study = small({"DFL": impatient})
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert repr(study) == "Study: 2 settings x 3 replicates x 1 methods (3 of 6 data sets done)"
    assert not study.complete
    assert len(study.draws()) == 3
    assert study.run().complete
    assert len(calls) == 4 + 3
    assert_frame_equal(numbers(study), numbers(small().run()), check_exact=True)


# ------------------------------------------------------------------ the folder


def test_a_spoilt_file_is_computed_again(tmp_path):
    first = small().run(out=tmp_path)
    path = next(tmp_path.glob("cells/*/1.json"))
    path.write_text(path.read_text()[:50])
    again = small().run(out=tmp_path)
    assert_frame_equal(numbers(again), numbers(first), check_exact=True)
    table = pd.read_csv(tmp_path / "table.csv", keep_default_na=False, na_values=[""])
    assert_frame_equal(table, again.to_frame(), check_exact=True)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"seed": 2}, "seed"),
        ({"shares": [0.3]}, "shares"),
        ({"methods": {"DFL": ad.DFL(balance=True)}}, "methods"),
        ({"networks": {"circle-5": ad.networks.directed_circle(20, 5)}}, "networks"),
        ({"corruptions": {"BF": lambda X, y, rng: (X, -y)}}, "corruptions"),
    ],
)
def test_another_study_is_refused_before_the_work(tmp_path, other, words):
    small().run(out=tmp_path)
    with pytest.raises(ValueError, match=f"which holds another study; they differ in {words}. Give a new folder"):
        small(**other).run(out=tmp_path)


def test_changed_functions_and_arrays_make_another_study(tmp_path):
    def mine(factor):
        return lambda X, y, rng: (X, factor * y)

    def study(factor=2.0, weight=0.5):
        return small({"w": ad.DFL(weights=np.full(20, weight))}, corruptions={"c": mine(factor)}, replicates=1)

    study().run(out=tmp_path)
    study().run(out=tmp_path)
    for other, words in ((study(factor=3.0), "corruptions"), (study(weight=0.25), "methods")):
        with pytest.raises(ValueError, match=f"differ in {words}"):
            other.run(out=tmp_path)


def test_another_version_is_refused(tmp_path, monkeypatch):
    small().run(out=tmp_path)
    monkeypatch.setattr("adfl_stats.simulate.studies.version", lambda name: "99.0")
    with pytest.raises(ValueError, match="they differ in version"):
        small().run(out=tmp_path)


def test_folders_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"out is '.*file', which is a file; give a folder"):
        small().run(out=tmp_path / "file")
    with pytest.raises(ValueError, match="a folder with other files and no study in it; give a new or empty folder"):
        small().run(out=tmp_path)
    with pytest.raises(OSError, match=r"file.under', which cannot be written to \(Not a directory\); give another"):
        small().run(out=tmp_path / "file" / "under")
    usage = folders.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: usage)
    study = small()
    with pytest.raises(OSError, match=r"whose disk has 0 MB left; the study may need 0 MB. Free some space"):
        study.run(out=tmp_path / "out")
    assert not study._done


def test_a_disk_that_fills_up_leaves_whole_files(tmp_path, monkeypatch):
    real = os.fsync
    count = []

    def full(descriptor):
        count.append(1)
        if len(count) == 4:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(folders.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        small().run(out=tmp_path)
    assert len(list(tmp_path.glob("cells/*/*.json"))) == 2
    assert not list(tmp_path.rglob("*.part"))


# ------------------------------------------------------------------ TOML


TOML = """
    methods = ["fit", "DFL", "oracle DFL"]
    corruptions = ["BF"]
    shares = [0.0, 0.2]
    replicates = 2
    seed = 3
    sizes = {n = [40, 60], p = 3}
    [networks.ours]
    file = "edges.csv"
    [designs.strong]
    family = "gaussian"
    slope = 2.0
    [fit]
    tolerance = 0.1
"""


def test_a_study_from_a_file(tmp_path, monkeypatch):
    net = ad.networks.directed_circle(12, 4, labels=[f"s{k}" for k in range(12)])
    edges = pd.DataFrame([(net.labels[(m + d) % 12], net.labels[m]) for m in range(12) for d in range(1, 5)])
    edges.set_axis(["source", "target"], axis=1).to_csv(tmp_path / "edges.csv", index=False)
    (tmp_path / "spec.toml").write_text(textwrap.dedent(TOML))
    monkeypatch.chdir("/")
    read = ad.Study.from_toml(tmp_path / "spec.toml")
    direct = ad.Study(
        ["fit", "DFL", "oracle DFL"],
        {"ours": ad.Network.from_file(tmp_path / "edges.csv")},
        {"strong": {"family": "gaussian", "slope": 2.0}},
        shares=[0.0, 0.2],
        sizes={"n": [40, 60], "p": 3},
        replicates=2,
        seed=3,
        fit={"tolerance": 0.1},
    )
    assert read.specification() == direct.specification()
    assert_frame_equal(numbers(read.run()), numbers(direct.run()), check_exact=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('methods = ["fit"\nshares = [0.2]', r"spec.toml: .*at line 2, column \d+.*, near the key 'shares'"),
        ("seed = 1\n\nreplicate = 3", "spec.toml, line 3: key is 'replicate'; choose one of 'methods', 'networks'"),
        ("[fitt]\nstep = 1", "spec.toml, line 1: key is 'fitt'; choose one of 'methods'"),
        ('methods = ["adfl"]', "methods is 'adfl'; choose one of 'fit', 'DFL', 'BRIDGE-M'"),
        ('[methods.b]\nmethod = "Brige"', "method is 'Brige'; choose one of 'ADFL', 'DFL', 'Bridge'"),
        ('[methods.b]\nmethod = "Bridge"\nrul = "median"', "option of method Bridge is 'rul'; choose one of 'rule'"),
        ('[networks.r]\ngenerator = "ring"', "networks: generator is 'ring'; choose one of .*'directed_circle'"),
        ('[networks.r]\ngenerator = "directed_circle"\nd = 3', "networks: option of directed_circle is 'd'; choose"),
        ('networks = ["ring-5"]', "networks has 'ring-5'; choose circle-D, erdos-renyi-q or complete"),
        ('designs = ["gamma"]', "designs is 'gamma'; choose one of 'gaussian', 'binomial', 'poisson'"),
        ('[designs.d]\nfamily = "poisson"\nlaw = 2', "designs: option is 'law'; choose one of 'covariates'"),
        ('corruptions = ["XX"]', "corruptions is 'XX'; choose one of 'BF', 'OOD', 'MP'"),
        ('[corruptions.c]\nkind = "Shif"', "corruptions: kind is 'Shif'; choose one of 'PartialRows'"),
        (
            '[corruptions.c]\nkind = "Shift"\nlength = 2',
            "corruptions: option of Shift is 'length'; choose one of 'size'",
        ),
        ("[fit]\nstepp = 1", "fit: option is 'stepp'; choose one of 'step', 'rounds'"),
        ("replicates = 0", "replicates is 0; it must be at least 1"),
        ("sizes = {n = 0}", r"sizes\['n'\] is 0; it must be at least 1"),
        ("sizes = {n = 50, p = 3}", r"sizes has no 'M', which network 'circle-5' needs"),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        ad.Study.from_toml(path)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ad.Study("fit"), TypeError, r"methods is 'fit'; give a list of names, as in methods=\['fit'\]"),
        (lambda: ad.Study([]), ValueError, "methods is empty; give at least one"),
        (lambda: ad.Study([ad.DFL(), ad.DFL(balance=True)]), ValueError, "methods has two values called 'DFL'"),
        (lambda: ad.Study({"a": ad.DFL}), TypeError, "methods has 'a', a <class .*; give a name, a method such as"),
        (lambda: small(networks=[ad.networks.complete(20)]), ValueError, "networks has .*, which has no name; give a"),
        (lambda: small(networks={"n": 5}), TypeError, "networks has 'n', a int; give a Network, a name such as"),
        (lambda: small(networks={"n": ad.networks.complete(9)}), ValueError, "'n' has 9 clients and sizes.* is 20"),
        (lambda: small(designs={"d": 5}), TypeError, "designs has 'd', a int; give 'gaussian', 'binomial'"),
        (lambda: small(designs={"d": lambda **k: 1}), TypeError, "design 'd' returned a int; a Simulation is wanted"),
        (lambda: small(corruptions=["none"]), ValueError, "corruptions has 'none', the word for data sets without"),
        (
            lambda: small(corruptions=["LF"]),
            ValueError,
            "corruption 'LF' flips binary labels, but family is 'gaussian'",
        ),
        (lambda: small(corruptions={"c": 3}), TypeError, "corruptions has 'c', a 3; give a name, a corruption such as"),
        (lambda: small(shares=[]), ValueError, "shares is empty; give at least one"),
        (lambda: small(shares=[1.0]), ValueError, r"shares is 1; it must lie in \[0, 1\)"),
        (lambda: small(sizes=[10, 20]), TypeError, r"sizes is \[10, 20\]; give a mapping, as in sizes="),
        (lambda: small(corruptions=[ad.simulate.Dynamic()]), ValueError, "changes during the rounds, and fit has no"),
        (lambda: small(fit={"solver": "newton"}), ValueError, "solver is 'newton'; choose one of 'auto'"),
        (lambda: small().to_frame(), ValueError, r"the study has no results yet; call run\(\) first"),
        (lambda: small().run(jobs=0), ValueError, "jobs is 0; it must be at least 1"),
    ],
)
def test_bad_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_missing_files(tmp_path):
    with pytest.raises(OSError, match=re.escape("none.toml: No such file or directory; give a TOML file")):
        ad.Study.from_toml(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'methods = ["\xe9"]')
    with pytest.raises(ValueError, match=r"latin.toml: byte 12 is not UTF-8"):
        ad.Study.from_toml(tmp_path / "latin.toml")
