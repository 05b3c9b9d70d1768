"""The README's code runs, and its table is the one it prints."""

import re
from pathlib import Path

import adfl_stats as ad

README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^(\w+)((?: +-?\d+\.\d+){6})$", re.M)


def test_readme_code_prints_the_readme_table(capsys, tmp_path, monkeypatch):
    first, differ, from_disk, second, third, studies = re.findall(r"```python\n(.*?)```", README, re.S)
    space = {}
    exec(first, space)
    shown = {name: values.split() for name, values in ROW.findall(README)}
    printed = {name: values.split() for name, values in ROW.findall(capsys.readouterr().out)}
    assert len(shown) == 5
    assert shown == printed
    res, sim = space["res"], space["sim"]
    told = [str(ad.screen(res)), str(res.oracle(sim.abnormal_labels, data=space["model"].data))]
    known = {line for text in told for line in text.splitlines()}
    block = README[README.index(">>> ad.screen(res)") : README.index("Each client's gradient")].splitlines()
    lines = [line for line in block if line and not line.startswith((">>>", "...", "```"))]
    assert len(lines) == 11
    assert set(lines) <= known
    exec(differ, space)
    printed = capsys.readouterr().out.splitlines()
    block = README[README.index(f"{'':29}Clients that differ") : README.index("Schools differ, and")]
    lines = [line for line in block.splitlines() if line and not line.startswith(("...", "```"))]
    assert len(lines) == 7
    assert set(lines) <= set(printed)
    assert (space["fit"].client_weights > 0.5).all()
    # "The weights of the paper ... would set more than a third of the schools aside."
    paper = space["by_school"].fit(ad.ADFL(lam="cv", equalise=False, balance=True), solver="limit")
    assert (paper.client_weights < 0.1).mean() > 1 / 3
    monkeypatch.chdir(tmp_path)
    space["frame"].to_parquet("stays.parquet")
    exec(from_disk, space)
    assert space["res"].params.index.to_list() == ["Intercept", "age", "C(treated)[T.1.0]"]
    exec(second, space)
    assert isinstance(space["res"], ad.Results)
    assert space["res"].solver == "limit"
    exec(third, space)
    printed = capsys.readouterr().out.split("\n")
    assert [line.rpartition(" ")[0] for line in printed[:4]] == [
        "BRIDGE-T",
        "ClippedGossip",
        "geometric median",
        "oracle DFL",
    ]
    assert space["res"].method.details["attack"] == "SignFlip"
    exec(studies, space)
    assert space["study"].complete
    assert "Efficiency against the oracle" in capsys.readouterr().out
    efficiency = space["study"].to_frame().set_index(["corruption", "method"])["efficiency"]
    assert efficiency["BF", "DFL"] < 0.1 < 0.8 < efficiency["BF", "fit"]
