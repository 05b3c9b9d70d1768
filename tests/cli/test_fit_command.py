"""``adfl-stats fit``: formats, IDs, methods, attacks and outputs, against the same fit in Python."""

import json

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import io, sparse

import adfl_stats as ad
from adfl_stats.cli import main as cli

IDS = ["007", "08", "NA", "1e3", "a b", "7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows and networks of six clients whose IDs would change if they were read as numbers."""
    path = tmp_path_factory.mktemp("fit")
    sim = ad.simulate.glm_design("poisson", M=6, n=40, p=2, intercept=True, seed=4)
    frame = sim.frame().drop(columns="const")
    frame["client"] = np.array(IDS)[frame["client"]]
    frame = frame.assign(days=np.random.default_rng(1).uniform(1, 3, len(frame)), w=1.0, shift=0.1)
    frame.to_csv(path / "rows.csv", index=False)
    frame.to_csv(path / "rows.tsv", index=False, sep="\t")
    frame.to_csv(path / "rows.txt", index=False, sep=";")
    frame.to_parquet(path / "rows.parquet")
    net = ad.networks.directed_circle(6, 3, labels=IDS)
    pairs = [(IDS[(m + d) % 6], IDS[m]) for m in range(6) for d in (1, 2, 3)]
    pd.DataFrame(pairs, columns=["source", "target"]).to_csv(path / "edges.csv", index=False)
    W = net.W.toarray()
    np.save(path / "W.npy", W)
    np.savez(path / "W.npz", W=W)
    io.mmwrite(path / "W.mtx", sparse.coo_array(W))
    import networkx

    networkx.write_graphml(net.to_networkx(), path / "net.graphml")
    return path, frame, net


def run(folder, *options, data="rows.csv", network="edges.csv"):
    command = ["fit", str(folder / data), "--formula", "y ~ x1 + x2", "--client", "client", "--family", "poisson"]
    return cli.main([*command, "--network", str(folder / network), *options])


@pytest.fixture(scope="module")
def direct(folder):
    _, frame, net = folder
    return ad.DecentralizedGLM.from_formula("y ~ x1 + x2", frame, "client", net, "poisson")


@pytest.mark.parametrize(
    ("data", "network"),
    [("rows.csv", name) for name in ("edges.csv", "W.npy", "W.npz", "W.mtx", "net.graphml")]
    + [(name, "edges.csv") for name in ("rows.tsv", "rows.txt", "rows.parquet")],
)
def test_formats_and_ids(folder, direct, tmp_path, capsys, data, network):
    extra = ["--sep", ";"] if data == "rows.txt" else []
    options = [
        "--coef-csv",
        f"{tmp_path}/coef.csv",
        "--clients",
        f"{tmp_path}/clients.csv",
        "--json",
        f"{tmp_path}/fit.json",
    ]
    assert run(folder[0], *extra, *options, "--quiet", data=data, network=network) == 0
    assert capsys.readouterr().out == ""
    res = direct.fit()
    coef = pd.read_csv(tmp_path / "coef.csv", index_col="name")
    assert_allclose(coef["coef"], res.params, rtol=1e-9)
    assert_allclose(coef["se"], res.bse, rtol=1e-9)
    clients = pd.read_csv(tmp_path / "clients.csv", dtype=str, keep_default_na=False)
    assert clients.iloc[:, 0].tolist() == IDS
    told = json.loads((tmp_path / "fit.json").read_text())
    assert list(told["clients"]) == IDS
    assert_allclose([line["upper"] for line in told["coefficients"].values()], res.conf_int()[1], rtol=1e-9)
    assert (told["fit"]["nobs"], told["fit"]["n_clients"], told["fit"]["converged"]) == (240, 6, True)


@pytest.mark.parametrize(
    ("options", "method", "arguments"),
    [
        (["--method", "dfl"], ad.DFL(), {}),
        (["--lam", "2", "--stages", "2"], ad.ADFL(lam=2.0, stages=2, balance=True), {}),
        (["--option", "lam=cv", "balance=false"], ad.ADFL(lam="cv"), {}),
        (["--method", "bridge", "--option", "rule=trimmed", "b=1", "--rounds", "50", "--step", "0.2"],
         ad.Bridge("trimmed", b=1), {"rounds": 50, "step": 0.2}),
        (["--method", "GeometricMedian", "--rounds", "20"], ad.GeometricMedian(), {"rounds": 20}),
        (["--method", "Oracle", "--option", 'abnormal=["007", "7"]'], ad.Oracle(["007", "7"]), {}),
        (["--method", "dfl", "--solver", "rounds"], ad.DFL(), {"solver": "rounds"}),
        (["--method", "dfl", "--rounds", "40", "--attack", "signflip", "--attackers", "08",
          "--attack-option", "scale=2"],
         ad.DFL(), {"rounds": 40, "attack": ad.attacks.SignFlip(["08"], scale=2)}),
    ],
)  # fmt: skip
def test_methods_and_attacks_by_name(folder, direct, tmp_path, options, method, arguments):
    assert run(folder[0], *options, "--quiet", "--save", f"{tmp_path}/fit.npz") == 0
    res = ad.load(tmp_path / "fit.npz")
    expected = direct.fit(method, **arguments)
    assert res.method.name == expected.method.name
    assert_allclose(res.client_params, expected.client_params, rtol=1e-9)


def test_sensitivity_is_printed_and_on_the_page(folder, direct, tmp_path, capsys, monkeypatch):
    whole = ad.Results.sensitivity
    monkeypatch.setattr(ad.Results, "sensitivity", lambda self, **given: whole(self, clients=False))
    assert run(folder[0], "--sensitivity", "--html", f"{tmp_path}/fit.html") == 0
    assert str(whole(direct.fit(), clients=False)) in capsys.readouterr().out
    assert 'id="sensitivity-plot"' in (tmp_path / "fit.html").read_text(encoding="utf-8")


def test_columns_of_the_model_and_kinds_of_covariance(folder, tmp_path, capsys):
    path, frame, net = folder
    options = [
        "--exposure",
        "days",
        "--offset",
        "shift",
        "--weights",
        "w",
        "--weighting",
        "client",
        "--cov-type",
        "CR3",
    ]
    assert run(path, *options, "--coef-csv", f"{tmp_path}/coef.csv", "--screen") == 0
    text = capsys.readouterr().out
    assert "CR3" in text
    assert "clients flagged by the score test" in text
    model = ad.DecentralizedGLM.from_formula(
        "y ~ x1 + x2", frame, "client", net, "poisson",
        weighting="client", exposure="days", offset="shift", weights="w",
    )  # fmt: skip
    coef = pd.read_csv(tmp_path / "coef.csv", index_col="name")
    assert_allclose(coef["se"], model.fit().standard_errors("CR3"), rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "krum"], "--method is 'krum'; choose one of 'ADFL', 'DFL', 'Bridge'"),
        (["--method", "dfl", "--lam", "2"], "option of --method DFL is 'lam'; choose one of 'weights'"),
        (["--option", "b"], "--option is 'b'; give NAME=VALUE, as in --option b=2"),
        (["--attack", "Zero", "--attackers", "7"], "--attack is 'Zero'; choose one of"),
        (["--attack", "SignFlip"], "--attack SignFlip needs --attackers"),
        (["--attackers", "7"], "--attackers and --attack-option need --attack; choose one of"),
        (["--attack", "SignFlip", "--attackers", "7", "--attack-option", "size=2"],
         "option of --attack SignFlip is 'size'; choose one of 'clients', 'scale'"),
        (["--attack", "SignFlip", "--attackers", "70", "--rounds", "5"], "'70'"),
        (["--cov-type", "HC9"], "HC9"),
        (["--client", "site"], "has no column 'site', which --client names; its columns are 'client', 'y'"),
        (["--sep", ";"], "has no column 'client'"),
    ],
)  # fmt: skip
def test_bad_options(folder, capsys, options, message):
    assert run(folder[0], *options, "--quiet") == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
    assert line.startswith("adfl-stats: ")
    assert message in line


def test_a_matrix_of_another_size(folder, tmp_path, capsys):
    np.save(tmp_path / "W.npy", np.full((3, 3), 1 / 3))
    command = ["fit", str(folder[0] / "rows.csv"), "--formula", "y ~ x1", "--client", "client", "--network"]
    assert cli.main([*command, str(tmp_path / "W.npy")]) == 2
    assert "has 3 clients without names, and the data have 6" in capsys.readouterr().err


@pytest.mark.parametrize("data", ["", "*.parquet"])
def test_a_folder_without_parquet_files(folder, tmp_path, capsys, data):
    command = ["fit", f"{tmp_path}/{data}", "--formula", "y ~ x1", "--client", "client", "--network"]
    assert cli.main([*command, str(folder[0] / "edges.csv")]) == 2
    assert "no Parquet file is found at" in capsys.readouterr().err


def test_ids_in_a_report_on_the_network(tmp_path, capsys):
    path = tmp_path / "edges.csv"
    path.write_text("source,target\n007,08\n08,007\n08,08\n007,7\n")
    assert ad.Network.from_file(path).labels.tolist() == ["007", "08", "7"]
    assert cli.main(["check-network", str(path)]) == 1
    assert "'7'" in capsys.readouterr().out
    path.write_text("source,target\n7,8\n8,7\n8,8\n")
    assert ad.Network.from_file(path).labels.tolist() == [7, 8]
