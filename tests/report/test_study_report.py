"""The report and the plots of a study: numbers from its table, words for what is chosen."""

import re

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import adfl_stats as ad

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(scope="module")
def study():
    sizes = {"M": 20, "n": [40, 80], "p": 3}
    return ad.Study(
        ["DFL", "oracle DFL"], ["circle-5", "complete"], corruptions=["BF", "MP"], shares=[0.0, 0.2], sizes=sizes,
        replicates=2,
    ).run()  # fmt: skip


@pytest.fixture(autouse=True)
def close():
    yield
    pyplot.close("all")


def test_report_has_the_numbers_of_the_table(study):
    report, table = ad.efficiency_report(study), study.to_frame()
    lines = report.as_text().splitlines()
    rows = [line for line in lines if line.startswith(("DFL", "oracle DFL"))]
    assert len(rows) == len(table) == 2 * 2 * 3 * 2
    for line, (_, wanted) in zip(rows, table.iterrows(), strict=True):
        words = line.removeprefix(wanted["method"]).split()
        assert words[:4] == [wanted["network"], wanted["corruption"], f"{wanted['share']:g}", f"{wanted['n']}"]
        value, error = re.fullmatch(r"(.*)\((\d+)\)", words[4]).groups()
        assert float(value) == round(wanted["efficiency"], 3)
        assert int(error) == round(1000 * wanted["efficiency_se"])
    assert len({len(line) for line in rows}) == 1
    # What does not vary is said once.
    assert any(re.fullmatch(r"design: +gaussian", line) for line in lines)
    assert r"\begin{tabular}" in report.as_latex()
    assert "<table" in report.as_html()


def test_large_errors_have_three_digits():
    from adfl_stats.report.efficiency import _with_error

    assert _with_error(0.0061, 0.0013, 4) == "0.0061(13)"
    assert _with_error(0.2078, 0.2039, 4) == "0.208(204)"
    assert _with_error(83.3489, 24.804, 4) == "83.3(248)"
    assert _with_error(5321.0, 1999.0, 2) == "5321(1999)"
    assert _with_error(0.5, np.nan, 3) == "0.500"


def test_report_of_a_part_says_so():
    part = ad.Study(["DFL"], shares=[0.2], sizes={"M": 20, "n": 40, "p": 3}, replicates=2, inference=False).run()
    part._done.popitem()
    assert "The study is not complete; run it again to go on." in " ".join(ad.efficiency_report(part).as_text().split())


def test_curves_are_the_table_with_its_bands(study):
    where = {"network": "circle-5", "corruption": "BF", "n": 40}
    ax = ad.plots.study_curves(study, where=where)
    table = study.to_frame().query("network == 'circle-5' and corruption in ['BF', 'none'] and n == 40")
    lines = {line.get_label(): line for line in ax.lines}
    assert list(lines) == ["DFL", "oracle DFL", "oracle"]
    dfl = table[table["method"] == "DFL"].sort_values("share")
    assert_allclose(lines["DFL"].get_ydata(), dfl["mse"])
    assert_allclose(lines["oracle"].get_ydata(), dfl["oracle_mse"])
    band = ax.collections[0].get_paths()[0].vertices
    # Two replicates: the 97.5 % quantile of Student's t with one degree of freedom.
    top = dfl["mse"].iloc[1] * np.exp(12.706205 * dfl["mse_se"].iloc[1] / dfl["mse"].iloc[1])
    assert_allclose(band[band[:, 0] == 0.2, 1].max(), top, rtol=1e-6)
    assert ax.get_yscale() == "log"
    looks = [(line.get_color(), line.get_marker(), str(line.get_linestyle())) for line in ax.lines]
    assert len(set(looks)) == 3


def test_curves_of_other_quantities_and_factors(study):
    where = {"network": "complete", "corruption": "MP", "share": 0.2}
    ax = ad.plots.study_curves(study, "coverage", "n", where=where, methods=["oracle DFL"])
    (line,) = ax.lines
    assert line.get_xdata().tolist() == [40, 80]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == (
        "rows per client",
        "coverage of 95 % intervals",
        "linear",
    )
    frame = study.to_frame()
    assert ad.plots.study_curves(frame, "gap", "n", where=where, ax=ax) is ax


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"several settings for one point; choose some by where= \(network: 'circle-5', 'complete'; corruption: "),
        ({"where": {"network": "circle-9"}}, r"where\['network'\] is 'circle-9'; the study has 'circle-5', 'complete'"),
        ({"where": {"D": 5}}, "where is 'D'; choose one of 'network', 'design'"),
        ({"value": "bias"}, "value is 'bias'; choose one of 'efficiency'"),
        ({"by": "method"}, "by is 'method'; choose one of 'network'"),
    ],
)
def test_bad_choices(study, options, message):
    with pytest.raises(ValueError, match=message):
        ad.plots.study_curves(study, **options)


def test_unknown_methods_are_named(study):
    where = {"network": "circle-5", "corruption": "BF", "n": 40}
    with pytest.raises(ValueError, match="methods is 'fit'; choose one of 'DFL', 'oracle DFL'"):
        ad.plots.study_curves(study, where=where, methods=["fit"])
    with pytest.raises(ValueError, match="method is 'fit'; choose one of 'DFL', 'oracle DFL'"):
        ad.plots.efficiency_map(study)


def test_map_has_a_number_for_each_setting(study):
    ax = ad.plots.efficiency_map(study, "DFL")
    table = study.to_frame().query("method == 'DFL'")
    # The setting without abnormal clients is shown with both corruptions.
    clean = table[table["corruption"] == "none"]
    wanted = sorted([*table["efficiency"].round(2), *clean["efficiency"].round(2)])
    assert_allclose(sorted(float(text.get_text()) for text in ax.texts), wanted, atol=0.0051)
    rows = [label.get_text() for label in ax.get_yticklabels()]
    assert len(rows) == 2 * 2 * 2
    image = ax.images[0].get_array()
    cell = table.query("network == 'circle-5' and corruption == 'BF' and n == 40")["efficiency"].iloc[0]
    assert_allclose(image[rows.index("circle-5, BF, 40"), 1], cell)


def test_pictures_are_files(study, tmp_path):
    ax = ad.plots.efficiency_map(study, "DFL")
    ax.figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 5000
    assert isinstance(study.to_frame(), pd.DataFrame)
