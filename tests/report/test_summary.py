"""Words, pictures and the shell."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import adfl_stats as ad
from adfl_stats.cli.main import main
from adfl_stats.report.summary import _differences


@pytest.fixture(scope="module")
def hospitals():
    sim = ad.simulate.hospitals(seed=3, M=30, abnormal=6)
    net = ad.networks.directed_circle(30, 4, labels=sim.labels)
    model = ad.DecentralizedGLM.from_formula(
        "readmitted ~ age + severity + comorbid + treated", sim.frame(), "hospital", net, "binomial"
    )
    return sim, net, model.fit()


FULL = "readmitted ~ age + severity + comorbid + treated"


def test_summary_shows_the_numbers_of_the_results(hospitals):
    sim, net, res = hospitals
    text = res.summary().as_text()
    assert (res.cov_type, res.use_t) == ("CR2", True)
    for name, df in res.degrees_of_freedom().items():
        line = next(line for line in text.splitlines() if line.startswith(f"{name} "))
        shown = [float(value) for value in line.split()[1:]]
        z = res.params[name] / res.bse[name]
        low, high = res.params[name] + stats.t.ppf([0.025, 0.975], df) * res.bse[name]
        wanted = [res.params[name], res.bse[name], z, 2 * stats.t.sf(abs(z), df), low, high]
        np.testing.assert_allclose(shown, wanted, atol=6e-4)
    assert re.search(r"Clients: +30$", text, re.M)
    assert re.search(r"Edges: +120$", text, re.M)
    assert f"{len(sim.y)}" in text
    assert f"{net.rho:.4f}" in text
    doubted = int((res.client_weights < 0.1).sum())
    assert f"Clients: {doubted} of 30 down-weighted" in text
    assert res.client_weights.idxmin() in text


def test_every_line_fits_eighty_columns(hospitals):
    assert max(map(len, hospitals[2].summary().as_text().splitlines())) <= 79


def test_summary_in_four_formats(hospitals):
    summary = hospitals[2].summary(alpha=0.1)
    assert "[0.05" in summary.as_text()
    html, latex, csv = summary.as_html(), summary.as_latex(), summary.as_csv()
    assert html.count("<table") == 5
    assert "Differences between clients" in html
    assert "Condition 5" in html
    assert r"\begin{center}" in latex
    assert "severity" in latex
    assert "severity" in csv
    assert summary._repr_html_() == html


def test_summary_says_when_things_are_not_well(paper_like):
    model, net = paper_like
    net_bad = ad.networks.central_client(net.n_clients)
    assert net_bad.rho > 1
    with pytest.warns(ad.ConvergenceWarning):
        res = ad.DecentralizedGLM(model.data, net_bad).fit(ad.DFL(), max_rounds=20)
    text = res.summary().as_text()
    assert re.search(r"Converged: +NO", text)
    assert re.search(r"Condition 5: rho .* fails", text)
    assert "estimates and tests are approximate" in " ".join(text.split())


def test_summary_shows_the_lambda_window_for_the_papers_weights(paper_like):
    model, _ = paper_like
    text = model.fit(ad.ADFL(lam=1.5, stages=1), step=0.1, rounds=20).summary().as_text()
    low, high = np.log(20 * 30), np.sqrt(30) * 20 ** (-1 / 8)
    assert re.search(rf"Theorem 3: lambda +1\.5 +{low:.3g} to {high:.3g} +indicative", text)


def test_summary_leaves_statsmodels_formats_alone(hospitals):
    from statsmodels.iolib import tableformatting

    before = repr(tableformatting.fmt_params), repr(tableformatting.fmt_2cols)
    hospitals[2].summary().as_text()
    assert before == (repr(tableformatting.fmt_params), repr(tableformatting.fmt_2cols))


@pytest.fixture(scope="module")
def paper_like():
    sim = ad.simulate.paper_linear(abnormal=0.0, corruption=None, seed=5, M=20, n=30, p=5)
    net = ad.networks.directed_circle(20, 3)
    return ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), net), net


def test_plots_draw_what_the_results_hold(hospitals):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    _, ax = pyplot.subplots()
    res = hospitals[2]
    assert ad.plots.clients(res, ax=ax) is ax
    drawn = np.sort(np.concatenate([part.get_offsets()[:, 1] for part in ax.collections[1:]]))
    np.testing.assert_allclose(drawn, np.sort(np.sqrt(res.clients()["score"])))
    axis = ad.plots.trace(res)
    assert axis.lines[0].get_xdata().max() == sum(res.trace.groupby("run")["round"].max())
    pyplot.close("all")


def test_summary_says_what_an_unbalanced_network_costs():
    sim = ad.simulate.paper_linear(0.0, None, seed=1, M=12, n=60, p=3)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    hub = ad.networks.central_client(12)
    words = "which the numerical error does not count"

    def text(net, method):
        return " ".join(str(ad.DecentralizedGLM(data, net).fit(method).summary()).split())

    # The centre has influence 1/2, each other client 1/22.
    lost = 1.0 - 1.0 / (12 * (0.25 + 11 / 22**2))
    assert f"loses about {lost:.1%} of efficiency, {words}" in text(hub, ad.DFL())
    assert words not in text(hub, ad.DFL(balance=True))
    assert words not in text(ad.networks.directed_circle(12, 3), ad.DFL())


def test_demo(capsys):
    assert main(["demo", "--clients", "20", "--seed", "2"]) == 0
    shown = capsys.readouterr().out
    assert "Decentralised GLM Results" in shown
    assert "Condition 5 (rho < 1): holds" in shown
    assert "the data of 4 are corrupted" in shown


def test_fit_command_agrees_with_the_library(tmp_path, capsys):
    sim = ad.simulate.hospitals(seed=4, M=12, abnormal=2)
    frame = sim.frame()
    labels = list(sim.labels)
    edges = pd.DataFrame(
        [(labels[(k + d) % 12], labels[k]) for k in range(12) for d in (1, 2, 3)], columns=["source", "target"]
    )
    frame.to_csv(tmp_path / "data.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    command = ["fit", str(tmp_path / "data.csv"), "--formula", FULL, "--client", "hospital"]
    command += ["--edges", str(tmp_path / "edges.csv"), "--family", "binomial"]
    outputs = [
        "--save",
        str(tmp_path / "r.npz"),
        "--clients",
        str(tmp_path / "c.csv"),
        "--html",
        str(tmp_path / "s.html"),
    ]
    assert main([*command, *outputs, "--screen"]) == 0
    net = ad.Network.from_edges(edges)
    res = ad.DecentralizedGLM.from_formula(FULL, frame, "hospital", net, "binomial").fit()
    np.testing.assert_allclose(ad.load(tmp_path / "r.npz").params, res.params, rtol=1e-9)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "c.csv")["weight"], res.clients()["weight"], rtol=1e-6)
    assert "<table" in (tmp_path / "s.html").read_text()
    printed = capsys.readouterr().out
    assert "std err" in printed
    assert str(ad.screen(res)) in printed
    assert main([*command, "--screen", "0.5"]) == 0
    assert "at q = 0.5" in capsys.readouterr().out
    assert main([*command, "--screen", "2"]) == 2
    assert "--screen is 2; it must lie in (0, 1)" in capsys.readouterr().err


def test_fit_command_refuses_bad_input_with_one_line(tmp_path, capsys):
    (tmp_path / "data.csv").write_text("site,y,x\na,1,2\nb,2,3\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,a\n")
    command = ["fit", str(tmp_path / "data.csv"), "--client", "site", "--edges", str(tmp_path / "edges.csv")]
    assert main([*command, "--formula", "y ~ z"]) == 2
    assert "no column 'z'" in capsys.readouterr().err
    assert main(["fit", "absent.csv", "--formula", "y ~ x", "--client", "site", "--edges", "e.csv"]) == 2
    assert "absent.csv" in capsys.readouterr().err


@pytest.mark.parametrize(("measure", "words"), [
    ("norm", "s = gradient norm,"),
    ("score", "s = excess of the root score statistic (one dispersion) over that of its chi-square .95 quantile,"),
])  # fmt: skip
def test_summary_tells_discrepancy_from_the_score_test(paper_like, measure, words):
    model, _ = paper_like
    res = model.fit(ad.ADFL(lam=2.0, measure=measure), step=0.1, rounds=20)
    text = " ".join(res.summary().as_text().split())
    assert words in text
    assert "flags are those of the score test of the model of clients, with its own null distribution" in text
    default = " ".join(model.fit().summary().as_text().split())
    assert "one dispersion" not in default


@pytest.mark.parametrize("kind", ["none", "common", "common + rank 1", "diagonal + rank 2"])
def test_spread_of_clients_fits_the_page(kind):
    clients = SimpleNamespace(cochran=(440.9, 325, 0.0), spread=np.diag([0.998, 0.1]), spread_kind=kind)
    clients.differ = kind != "none"
    bse = pd.Series([0.1, 0.1], index=["Intercept", "livch[T.3+]"])
    table = _differences(SimpleNamespace(record=SimpleNamespace(glance=clients), bse=bse, params=bse)).table(20)
    assert {len(line) for line in table.as_text().splitlines()} == {78}
    assert kind in table.as_text()


def test_lines_of_the_theory_are_not_shortened():
    """Names of users are cut to their column; those of the paper fit in it."""
    sim = ad.simulate.paper_linear(0.2, "BF", seed=1, M=12, n=40, p=3)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    model = ad.DecentralizedGLM(data, ad.networks.directed_circle(12, 5))
    for method in (ad.ADFL(), ad.ADFL(lam=2.0, measure="norm", equalise=False)):
        text = str(model.fit(method).summary())
        theory = text[text.index("Theory") : text.index("Notes:")]
        assert "Prop. 1: step+SE(W)" in theory
        assert "~" not in theory
