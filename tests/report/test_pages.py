"""Pages without a browser: their structure, what they show, and that no label becomes markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import pdist, squareform

import adfl_stats as ad
from adfl_stats._text import printable
from adfl_stats.cli.main import main
from adfl_stats.inference.sensitivity import Sensitivity
from adfl_stats.report.pages.charts import Axis
from adfl_stats.report.pages.layout import layout
from adfl_stats.report.pages.markup import joined, tag
from adfl_stats.theory import Report

HOSTILE = "<script>alert('x')</script>\"&\x00\u202e"
VOID = {"meta", "input", "br", "hr", "link"}


class Page(HTMLParser):
    """The elements of a page as (tag, attributes, text of its own), checked to be balanced."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self._open = [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, name, attributes):
        names = [key for key, _ in attributes]
        assert len(names) == len(set(names))
        inside = [parent for parent, _, _ in self._open]
        self.elements.append((name, dict(attributes), []))
        if name not in VOID:
            self._open.append(self.elements[-1])
        self.elements[-1][1]["inside"] = inside

    def handle_endtag(self, name):
        assert self._open.pop()[0] == name

    def handle_data(self, data):
        if self._open:
            self._open[-1][2].append(data)

    def all(self, name):
        return [(attributes, "".join(text)) for kind, attributes, text in self.elements if kind == name]


def checked(path):
    """Read a page and check what is true of every page."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    attributes = [found for _, found, _ in page.elements]
    ids = [found["id"] for found in attributes if "id" in found]
    assert len(ids) == len(set(ids))
    # References lead somewhere.
    for found in attributes:
        for key in ("aria-labelledby", "aria-describedby", "aria-controls", "for"):
            assert set(found.get(key, "").split()) <= set(ids)
        if "href" in found:
            assert found["href"].removeprefix("#") in ids
        if "marker-end" in found:
            assert found["marker-end"][5:-1] in ids
        # Nothing is loaded, and nothing runs but the script: no handlers, no styles in elements.
        assert not {key for key in found if key.startswith("on") or key in ("src", "style", "srcset", "xlink:href")}
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text.split("<style>")[1])
    # Tables: a caption, and headers that say what they head.
    tables = [found for found, _ in page.all("table")]
    assert len(page.all("caption")) == len(tables) > 0
    assert all(found["scope"] in ("row", "col") for found, _ in page.all("th"))
    assert all(found["inside"][-1] == "table" for found, _ in page.all("caption"))
    # Drawings have names and captions; the key's samples are hidden from screen readers.
    for found, _ in page.all("svg"):
        assert found.get("aria-hidden") == "true" or (found["role"], found["tabindex"]) == ("img", "0")
    assert [found["lang"] for found, _ in page.all("html")] == ["en"]
    levels = [int(name[1]) for name, _, _ in page.elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert max(np.diff(levels)) <= 1
    # One style and one script, known by their hashes; data are JSON.
    scripts = page.all("script")
    runs = [body for found, body in scripts if "type" not in found]
    assert len(runs) == 1
    for found, body in scripts:
        if "type" in found:
            assert found["type"] == "application/json"
            json.loads(body)
    policy = next(found["content"] for found, _ in page.all("meta") if "http-equiv" in found)
    for body in (runs[0], page.all("style")[0][1]):
        assert base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    return page


def rows(page, key):
    """The texts of a table's cells, by row."""
    kinds = [(name, found.get("id"), "".join(text)) for name, found, text in page.elements]
    begin = next(k for k, (name, found, _) in enumerate(kinds) if name == "table" and found == key)
    lines = []
    for name, _, text in kinds[begin + 1 :]:
        if name == "table":
            break
        if name == "tr":
            lines.append([])
        elif name in ("th", "td", "button") and lines:
            lines[-1].append(text)
    return lines


@pytest.fixture(scope="module")
def hospitals():
    sim = ad.simulate.hospitals(seed=3, M=30, abnormal=6)
    labels = [f"{name} {HOSTILE}" if k == 4 else name for k, name in enumerate(sim.labels)]
    frame = sim.frame()
    frame["hospital"] = frame["hospital"].map(dict(zip(sim.labels, labels, strict=True)))
    net = ad.networks.small_world(30, 4, 0.2, seed=1, labels=labels)
    model = ad.DecentralizedGLM.from_formula("readmitted ~ age + severity", frame, "hospital", net, "binomial")
    return model.fit()


def test_page_of_a_fit_is_complete_and_shows_the_results(hospitals, tmp_path):
    path = hospitals.report(tmp_path / "fit.html")
    page, text = checked(path), path.read_text(encoding="utf-8")
    headings = [text for _, text in page.all("h2")]
    assert headings == ["Summary", "Coefficients", "Clients", "Network", "Differences between clients", "Conditions",
                        "Theory", "The fit", "Notes"]  # fmt: skip
    for name, value, se in zip(hospitals.params.index, hospitals.params, hospitals.bse, strict=True):
        assert f'<th scope="row">{name}</th><td>{value:.4g}</td><td>{se:.4g}</td>' in text
    table = hospitals.clients()
    lines = rows(page, "client-table")
    shown = [line for line in lines[1:] if line]
    assert len(shown) == 30
    # Beside the header's buttons stand empty texts of their cells.
    assert [word for word in lines[0] if word] == ["hospital", *table.columns]
    by_name = {line[0]: line for line in shown}
    for label, row in table.iterrows():
        cells = by_name[printable(str(label))]
        assert cells[1] == str(row["n"])
        assert float(cells[list(table.columns).index("weight") + 1]) == pytest.approx(row["weight"], rel=5e-3)
    # Each client is a mark in the network and in the two plots of clients.
    marks = [found["data-c"] for _, found, _ in page.elements if "data-c" in found]
    assert sorted(map(int, marks)) == sorted(3 * list(range(30)))
    checks = hospitals.check().checks
    assert len(checks) == sum(found.get("class", "").startswith("status ") for found, _ in page.all("span"))
    assert "".join(re.findall(r'<ol class="notes">.*?</ol>', text)).count("<li>") >= 4


def test_no_label_becomes_markup(hospitals, tmp_path):
    path = hospitals.report(tmp_path / "fit.html", title=HOSTILE)
    page = checked(path)
    assert "alert(" not in "".join(body for _, body in page.all("script"))
    shown = printable(HOSTILE)
    assert page.all("h1")[0][1] == shown == page.all("title")[0][1]
    assert any(shown in text for found, text in page.all("th"))
    tips = [found["data-t"] for _, found, _ in page.elements if "data-t" in found]
    assert any(shown in tip for tip in tips)
    assert not set("\x00\u202e") & set(path.read_text(encoding="utf-8"))


def test_saved_results_have_the_same_page(hospitals, tmp_path, capsys):
    hospitals.save(tmp_path / "fit.npz")
    wanted = hospitals.report(tmp_path / "a.html").read_text(encoding="utf-8")
    assert main(["report", str(tmp_path / "fit.npz")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "fit.html")
    assert (tmp_path / "fit.html").read_text(encoding="utf-8") == wanted
    assert main(["report", str(tmp_path / "fit.npz"), "--html", str(tmp_path / "b.html"), "--title", "Mine"]) == 0
    assert checked(tmp_path / "b.html").all("h1")[0][1] == "Mine"
    assert main(["report", str(tmp_path / "absent.npz")]) == 2
    assert "absent.npz" in capsys.readouterr().err


def linear(M=12, net=None, **options):
    sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=M, n=30, p=2)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return ad.DecentralizedGLM(data, net or ad.networks.directed_circle(M, 3), **options)


class Means:
    """A loss of a user's own, with gradients only."""

    M, P, labels, names = 4, 1, pd.RangeIndex(4), ["mean"]
    totals, counted = np.ones(4), np.ones(4, dtype=bool)

    def start(self):
        return np.zeros((4, 1))

    def gradients(self, theta, threads=1):
        return theta - np.array([1.0, 2.0, 3.0, 6.0])[:, None, None]


FITS = {
    "rounds": lambda: linear().fit(ad.DFL(), step=0.1, rounds=60),
    "medians": lambda: linear().fit(ad.Bridge("median"), step=0.1, rounds=60),
    "lambda path": lambda: linear().fit(ad.ADFL(lam=[0.5, 1.0, 4.0]), step=0.1, rounds=60),
    "schedule": lambda: linear(net=ad.networks.dropout(ad.networks.directed_circle(12, 3), 0.1, seed=1)).fit(
        ad.DFL(), step=0.1, rounds=60
    ),
    "penalty": lambda: linear(penalty=ad.Ridge(0.1)).fit(),
    "closed groups": lambda: linear(net=ad.Network.from_adjacency(np.kron(np.eye(2), np.ones((6, 6)) - np.eye(6)))).fit(
        ad.DFL(), step=0.1, rounds=60
    ),
    "gradients only": lambda: ad.DecentralizedModel(Means(), ad.networks.complete(4)).fit(step=0.1, rounds=50),
}


@pytest.mark.parametrize("case", FITS)
@pytest.mark.filterwarnings("ignore::adfl_stats.errors.AdflWarning")
def test_every_kind_of_fit_has_a_page(case, tmp_path):
    page = checked(FITS[case]().report(tmp_path / "fit.html"))
    text = " ".join(text for _, _, parts in page.elements for text in parts)
    assert ("Lambda by cross-validation" in text) == (case == "lambda path")
    assert ("changes with the round" in text) == (case == "schedule")


def test_further_results_have_sections_of_their_own(tmp_path):
    model = linear()
    res = model.fit(ad.DFL(), step=0.1, rounds=60)
    rates = model.rates(res)
    extras = [rates, res.oracle([0, 1], data=model.data), res.check(abnormal=[0, 1]), pd.DataFrame({"a<b": [1.5]})]
    page = checked(res.report(tmp_path / "fit.html", also=extras))
    headings = [text for _, text in page.all("h2")]
    assert headings[-5:] == ["Convergence by round", "Oracle comparison", res.check().title, "Table", "Notes"]
    texts = [text for _, text in page.all("td")]
    assert f"{rates.exact:.4g}" in texts
    assert "1.5" in texts
    tips = [found["data-t"] for _, found, _ in page.elements if "data-t" in found]
    assert sum(tip.startswith("round ") and "optimisation error" in tip for tip in tips) == len(rates.distances)
    with pytest.raises(TypeError, match="also has a int; wanted are results such as"):
        res.report(tmp_path / "fit.html", also=[3])
    alone = checked(rates.report(tmp_path / "rates.html"))
    assert [text for _, text in alone.all("h2")] == ["Convergence by round"]
    advised = checked(model.advise().report(tmp_path / "advice.html"))
    assert "Network" in [text for _, text in advised.all("h2")]


def test_largest_sensitivities_are_drawn(tmp_path):
    index = pd.MultiIndex.from_tuples([("this fit", ""), *(("without", f"h<{k}") for k in range(40))])
    shift = np.concatenate([[0.0], np.linspace(-2.0, 2.0, 40)])
    params = pd.DataFrame({"x1": 1.0 + 0.1 * shift}, index=index)
    errors, df = pd.DataFrame({"x1": 0.1}, index=index), pd.DataFrame({"x1": np.inf}, index=index)
    found = Sensitivity(params, errors, df, pd.Series(40, index=index))
    page = checked(linear().fit(ad.DFL(), step=0.1, rounds=60).report(tmp_path / "fit.html", also=[found]))
    marks = {
        found["data-t"]: found["class"] for _, found, _ in page.elements if " moves by " in found.get("data-t", "")
    }
    assert len(marks) == 25
    moves = {tip: float(re.search(r"by ([-+.\d]+)", tip)[1]) for tip in marks}
    # The fit itself, and the largest of the others.
    assert sorted(map(abs, moves.values()))[1] > np.sort(np.abs(shift))[-26]
    assert all((kind == "w0") == (abs(moves[tip]) > 1.0) for tip, kind in marks.items())


@pytest.mark.parametrize(
    "net",
    [
        ad.networks.directed_circle(10, 3),
        ad.networks.complete(5),
        ad.networks.central_client(12),
        ad.networks.erdos_renyi(60, 0.5, seed=1),
        ad.Network.from_adjacency(np.kron(np.eye(2), np.ones((3, 3)))),
        ad.Network.from_weights(np.ones((1, 1))),
    ],
    ids=["circle", "complete", "star", "dense", "two parts", "one client"],
)
def test_page_of_a_network(net, tmp_path):
    report = ad.check_network(net)
    page = checked(report.report(tmp_path / "net.html"))
    assert page.all("h1")[0][1] == report.title
    places = {(found.get("cx"), found.get("cy"), found.get("d")) for _, found, _ in page.elements if "data-c" in found}
    assert len(places) == net.n_clients
    report.save(tmp_path / "saved.html")
    assert (tmp_path / "saved.html").read_text() == (tmp_path / "net.html").read_text()


def test_report_without_a_network_has_a_page(hospitals, tmp_path):
    page = checked(hospitals.check().report(tmp_path / "theory.html", title="Theory"))
    assert [text for _, text in page.all("h2")] == ["Summary", "Checks"]


def test_thousand_clients_stay_below_a_megabyte(tmp_path):
    sim = ad.simulate.paper_linear(abnormal=0.1, corruption="BF", seed=1, M=1000, n=20, p=3)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    res = ad.DecentralizedGLM(data, ad.networks.small_world(1000, 6, 0.1, seed=1)).fit(heterogeneity="none")
    path = res.report(tmp_path / "fit.html")
    assert path.stat().st_size < 1e6
    page = checked(path)
    assert len(rows(page, "client-table")) == 1001


def test_only_some_of_many_clients_and_edges_are_shown_and_the_page_says_so(tmp_path):
    text = (
        Report("Many clients", (), network=ad.networks.directed_circle(2500, 3)).report(tmp_path / "a.html").read_text()
    )
    assert "The network has 2,500 clients and is not drawn" in text
    assert "The first 2,000 of 2,500 are listed." in text
    text = (
        Report("Many edges", (), network=ad.networks.erdos_renyi(200, 0.5, seed=1))
        .report(tmp_path / "b.html")
        .read_text()
    )
    assert "of which a random 8,000 are drawn" in text


def test_page_of_a_study(tmp_path):
    sizes = {"M": 20, "n": 40, "p": 2}
    networks = {HOSTILE: ad.networks.directed_circle(20, 5), "complete": ad.networks.complete(20)}
    methods, shares = ["DFL", ad.Bridge("median")], [0, 0.1, 0.2]
    study = ad.Study(
        methods, networks, corruptions=["BF", "OOD"], shares=shares, sizes=sizes, replicates=2, inference=False
    )
    with pytest.raises(ValueError, match="no results yet"):
        study.report(tmp_path / "study.html")
    assert not (tmp_path / "study.html").exists()
    page = checked(study.run().report(tmp_path / "study.html"))
    assert [text for _, text in page.all("h2")] == [
        "Summary",
        "Errors by setting",
        "All settings",
        "Slopes",
        "Specification",
    ]
    table = study.to_frame()
    lines = rows(page, "setting-table")
    heads = [word for word in lines[0] if word]
    assert [line[0] for line in lines[1:]] == table["method"].tolist()
    shown = [float(line[heads.index("efficiency")]) for line in lines[1:]]
    np.testing.assert_allclose(shown, table["efficiency"], rtol=5e-3)
    # A picture for each network and corruption, a point for each share and method.
    tips = [found["data-t"] for _, found, _ in page.elements if "data-t" in found]
    assert len(tips) == 2 * 2 * 3 * 2
    first = table.iloc[0]
    assert f"{first['method']}, share 0: MSE {first['mse']:.4g} (se {first['mse_se']:.4g})" in tips[0]
    one = ad.Study(["DFL"], shares=[0.2], sizes=sizes, replicates=2, inference=False).run()
    assert "Slopes" not in [text for _, text in checked(one.report(tmp_path / "one.html")).all("h2")]


def test_command_writes_the_page_of_a_study(tmp_path, capsys):
    spec = tmp_path / "spec.toml"
    words = [
        'methods = ["DFL"]',
        "shares = [0.2]",
        "replicates = 2",
        "inference = false",
        "sizes = {M = 20, n = 40, p = 2}",
    ]
    spec.write_text("\n".join(words))
    assert main(["study", str(spec), "--jobs", "1", "--html", str(tmp_path / "study.html")]) == 0
    assert "DFL" in capsys.readouterr().out
    checked(tmp_path / "study.html")


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.AdflWarning")
def test_code_of_the_documentation_runs(tmp_path, monkeypatch):
    text = Path(__file__).parents[2].joinpath("docs", "reports.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(block, {})
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["advice.html", "fit.html", "more.html", "network.html", "rates.html", "study.html"]
    page = checked(tmp_path / "fit.html")
    assert page.all("h1")[0][1] == "readmitted: aDFL"
    assert checked(tmp_path / "more.html").all("h1")[0][1] == "Readmissions"


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("fit.pdf", ValueError, "give a name that ends in .html"),
        ("absent/fit.html", FileNotFoundError, "there is no folder"),
    ],
)
def test_bad_paths_are_refused_before_the_work(hospitals, tmp_path, monkeypatch, path, error, message):
    monkeypatch.setattr("adfl_stats.report.pages.fit_page.fit_page", None)
    with pytest.raises(error, match=message):
        hospitals.report(tmp_path / path)
    with pytest.raises(ValueError, match="alpha"):
        hospitals.report(tmp_path / "fit.html", alpha=2.0)


def test_name_without_ending_gets_one(tmp_path):
    report = ad.check_network(ad.networks.complete(3))
    assert report.report(tmp_path / "net") == tmp_path / "net.html"


def test_commands_write_pages(tmp_path, capsys):
    assert main(["demo", "--clients", "12", "--html", str(tmp_path / "demo.html")]) == 0
    checked(tmp_path / "demo.html")
    assert f"Page: {tmp_path / 'demo.html'}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["demo", "--html", str(tmp_path / "demo.txt")])
    assert "does not end in .html" in capsys.readouterr().err


# ---------------------------------------------------------------------- parts


def test_distances_in_the_plane_are_near_those_on_the_network():
    """A path has places on a line, at equal distances; a square grid is drawn as one up to rotation."""
    path = ad.Network.from_adjacency(np.eye(9, k=1) + np.eye(9, k=-1))
    places, circle = layout(path)
    assert not circle
    distances = pdist(places) * 8
    hops = pdist(np.arange(9.0)[:, None])
    np.testing.assert_allclose(distances / distances.max() * 8, hops, rtol=0.02)
    side = np.arange(5)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2).astype(float)
    near = squareform(pdist(grid)) == 1.0
    places, _ = layout(ad.Network.from_adjacency(near.astype(float)))
    # Neighbours on the network are nearer in the plane than any others.
    apart = squareform(pdist(places))
    assert apart[near].max() < apart[~near & ~np.eye(25, dtype=bool)].min()


def test_clients_with_the_same_neighbours_have_places_of_their_own():
    places, _ = layout(ad.networks.central_client(40))
    assert pdist(places).min() > 0.01


def test_axes_have_round_numbers_within_their_range():
    axis = Axis(-0.31, 0.87, "x")
    assert [text for _, text in axis.ticks()] == ["-0.2", "0", "0.2", "0.4", "0.6", "0.8"]
    assert [text for _, text in Axis(3e-5, 2.0, "x", log=True).ticks()] == ["0.0001", "0.001", "0.01", "0.1", "1"]
    np.testing.assert_allclose(Axis(1.0, 100.0, "x", log=True).unit([1.0, 10.0, 100.0]), [0.0, 0.5, 1.0])
    same = Axis.of([2.0, 2.0], "x")
    assert same.low < 2.0 < same.high
    nothing = Axis.of([np.nan], "x")
    assert nothing.low < nothing.high


def test_tags_escape_what_they_are_given():
    assert tag("p", "a<b", tag("b", '"c"'), title='"&') == '<p title="&quot;&amp;">a&lt;b<b>&quot;c&quot;</b></p>'
    # Half of a character is written out, as control characters are.
    assert joined("\ud800", 3) == r"\ud8003"
