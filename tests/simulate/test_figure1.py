"""Figure 1: what counts as reproduced, on tables whose answers are known."""

import numpy as np
import pandas as pd
import pytest

import adfl_stats as ad
from adfl_stats.simulate.figure1 import OURS, PAPER, caption, draw_figure1, figure1_studies, statements, trimming

RIVALS = ("DFL", "BRIDGE-M", "BRIDGE-T", "ClippedGossip", "SLBRN-M", "SLBRN-T")


def paper_table(**changes):
    """A table in which everything is as the paper says; `changes` maps a method to a function of network and share."""
    lines = []
    for network, dense in (("circle-5", 0.0), ("circle-30", 1.0)):
        for kind in ("none", "BF", "OOD", "MP"):
            for share in (0.0,) if kind == "none" else (0.1, 0.2, 0.3, 0.4):
                oracle = 0.01 / (1 - share)
                errors = {"DFL": 0.01 + 4 * share**2} | {name: 0.01 + (3 - dense) * share**2 for name in RIVALS[1:4]}
                errors |= dict.fromkeys(("SLBRN-M", "SLBRN-T"), 50.0) | {OURS: oracle, PAPER: 1.1 * oracle}
                errors |= {name: change(network, share) for name, change in changes.items()}
                for name, mse in errors.items():
                    line = {"network": network, "design": "d", "corruption": kind, "share": share, "method": name}
                    line |= {"mse": mse, "mse_se": 0.0, "oracle_mse": oracle, "oracle_mse_se": 0.0, "failed": 0.0}
                    line["replicates"] = 20
                    lines.append(line)
    return pd.DataFrame(lines)


def test_what_the_paper_says_is_reproduced():
    found = statements(paper_table())
    assert len(found) == 8
    assert all(statement.reproduced for statement in found), "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ClippedGossip": lambda network, share: 0.05 - 0.1 * share**2}, ["all algorithms except aDFL"]),
        ({PAPER: lambda network, share: 0.02 + 0.05 * share}, [f"the MSE of {PAPER} does not increase"]),
        ({OURS: lambda network, share: 0.02 / (1 - share)}, [f"the MSE of {OURS} does not increase"]),
        ({"BRIDGE-T": lambda network, share: 0.01 + 5 * share**2}, ["a smaller MSE than DFL"]),
        (
            {"BRIDGE-M": lambda network, share: 0.0101 + 1e-4 * share},
            ["all algorithms except aDFL", f"{PAPER} has the smallest", f"{OURS} has the smallest"],
        ),
        (
            {"BRIDGE-M": lambda network, share: 0.01 + (2.5 if network == "circle-5" else 3.0) * share**2},
            ["improve with more neighbours"],
        ),
        (
            {"SLBRN-T": lambda network, share: 0.01 + 3.5 * share**2},
            ["SLBRN algorithms fail to converge"],
        ),
    ],
)
def test_what_is_not_so_is_not_reproduced(change, words):
    wrong = [statement.text for statement in statements(paper_table(**change)) if not statement.reproduced]
    assert len(wrong) == len(words), wrong
    for text, part in zip(wrong, words, strict=True):
        assert part in text


def test_diverged_fits_did_not_converge():
    table = paper_table()
    gone = table["method"].str.startswith("SLBRN")
    table.loc[gone, ["mse", "failed"]] = [np.nan, 1.0]
    (last,) = [statement for statement in statements(table) if "SLBRN" in statement.text]
    assert last.reproduced
    assert "SLBRN-M on circle-5: diverged" in last.evidence


def test_trimming():
    assert [trimming(ad.networks.directed_circle(100, D)) for D in (2, 3, 5, 30)] == [0, 1, 2, 12]
    star = ad.networks.central_client(20)
    assert trimming(star) == 0


def test_the_full_studies_are_the_papers():
    studies = figure1_studies()
    assert list(studies) == ["circle-5", "circle-30"]
    for study in studies.values():
        # Three corruptions at four shares, and none; the paper's sizes; 20 replicates.
        assert len(study.settings) == 13
        assert (study.sizes, study.replicates) == ([{"M": 100, "n": 100, "p": 50}], 20)
        assert len(study.methods) == 9
    text = caption(studies, quick=False)
    for open_setting in (
        "V of OOD",
        "b of BRIDGE-T",
        "radius",
        "three stages",
        "lambda from 0.5, 1, 2, 4",
        "300 rounds",
    ):
        assert open_setting in text
    assert list(figure1_studies("er", quick=True)) == ["erdos-renyi-.1", "erdos-renyi-.3"]


def test_picture_has_a_panel_for_each_network_and_corruption():
    figure = draw_figure1(paper_table())
    panels = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in panels][:2] == ["bit flip, circle-5", "out of distribution, circle-5"]
    assert len(panels) == 6
    assert {len(ax.lines) for ax in panels} == {9}
    low, high = panels[0].get_ylim()
    # SLBRN leaves the picture upwards, the others stay in it.
    assert low < 0.01 < 0.65 < high < 50.0
