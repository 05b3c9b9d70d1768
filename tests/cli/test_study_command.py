"""``adfl-stats study``, ``reproduce`` and ``completion`` in a shell."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import adfl_stats as ad
from adfl_stats.cli import main as cli

SPEC = """
methods = ["DFL", "oracle DFL"]
corruptions = ["BF"]
shares = [0.0, 0.2]
replicates = {replicates}
inference = false
sizes = {{M = 20, n = 40, p = 3}}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.format(replicates=2))
    return path


def test_a_study_from_the_shell(spec, tmp_path, capsys):
    out = tmp_path / "out"
    files = {name: str(tmp_path / name) for name in ("table.parquet", "table.tex", "map.png", "page.html")}
    options = ["--table", files["table.parquet"], "--latex", files["table.tex"], "--plot", files["map.png"]]
    options += ["--html", files["page.html"]]
    assert cli.main(["study", str(spec), "--jobs", "1", "--out", str(out), *options]) == 0
    text = capsys.readouterr().out
    assert "Efficiency against the oracle" in text
    direct = ad.Study.from_toml(spec).run().to_frame()
    columns = [name for name in direct if not name.startswith("seconds")]
    for table in (
        pd.read_parquet(files["table.parquet"]),
        pd.read_csv(out / "table.csv", keep_default_na=False, na_values=[""]),
    ):
        assert_frame_equal(table[columns], direct[columns], check_exact=True)
    assert r"\begin{tabular}" in (tmp_path / "table.tex").read_text()
    assert "oracle DFL" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ("methods = [", [], "spec.toml: "),
        ("seed = 2", ["--out", "out"], "which holds another study; they differ in seed"),
        ("", ["--jobs", "0"], "jobs is 0; it must be at least 1"),
    ],
)
def test_bad_input(spec, tmp_path, monkeypatch, capsys, change, options, message):
    monkeypatch.chdir(tmp_path)
    ad.Study.from_toml(spec).run(out="out")
    spec.write_text(change + "\n" + spec.read_text())
    assert cli.main(["study", str(spec), "--jobs", "1", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("module", "option", "message"),
    [
        ("", ["--table", "table.xls"], "'table.xls' does not end in .csv or .parquet"),
        ("pyarrow", ["--table", "t.parquet"], "Parquet files need pyarrow; install it with: pip install 'adfl-stats"),
        ("matplotlib", ["--plot", "map.png"], "plots need matplotlib; install it with: pip install 'adfl-stats[plot]'"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(spec, monkeypatch, capsys, module, option, message):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else found(name))
    monkeypatch.setattr(ad.Study, "run", lambda *_, **__: pytest.fail("the study began"))
    with pytest.raises(SystemExit, match="2"):
        cli.main(["study", str(spec), *option])
    assert message in capsys.readouterr().err


def test_figure_1_asks_for_matplotlib_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["reproduce", "figure1", "--out", str(tmp_path / "new")]) == 2
    assert "plots need matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_not_there_is_named(capsys):
    assert cli.main(["report", "/none/fit.npz"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("adfl-stats: ")
    assert "/none/fit.npz" in line
    assert line.endswith("No such file or directory")


@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupted_and_resumed(tmp_path, jobs):
    spec, out = tmp_path / "spec.toml", tmp_path / "out"
    spec.write_text(SPEC.format(replicates=5000))
    command = [sys.executable, "-m", "adfl_stats", "study", str(spec), "--jobs", str(jobs), "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while len(list(out.glob("cells/*/*.json"))) < 3:
        time.sleep(0.05)
        assert process.poll() is None
    # As a terminal does: all processes of the group.
    os.killpg(process.pid, signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    line, *more = told.splitlines()
    assert not more, told
    assert line.startswith("adfl-stats: interrupted with ")
    assert line.endswith(" of 10000 data sets done; the same command goes on")
    kept = len(list(out.glob("cells/*/*.json")))
    spec.write_text(SPEC.format(replicates=2))
    assert cli.main([*command[3:5], "--jobs", "1", "--out", str(out)]) == 0
    assert len(list(out.glob("cells/*/*.json"))) <= kept + 4


def test_figure_1_in_small(tmp_path, capsys, monkeypatch):
    from adfl_stats.simulate import figure1

    monkeypatch.setattr(figure1, "QUICK", {"M": 20, "n": 30, "p": 5})
    monkeypatch.setattr(figure1, "CORRUPTIONS", {"BF": "bit flip"})
    monkeypatch.setattr(figure1, "QUICK_SHARES", (0.0, 0.4))
    out = tmp_path / "figure"
    command = ["reproduce", "figure1", "--quick", "--replicates", "2", "--jobs", "1", "--out", str(out)]
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert text.count("reproduced: ") == 8
    assert (
        "b of BRIDGE-T and SLBRN-T is two fifths of the mean in-degree where the network allows: 2 on circle-5" in text
    )
    table = pd.read_csv(out / "figure1.csv", keep_default_na=False, na_values=[""])
    assert table["method"].nunique() == 9
    assert table["network"].unique().tolist() == ["circle-5", "circle-12"]
    assert (out / "figure1.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "figure1.svg").read_text()
    # The default fit is at the oracle, DFL is far from it: (2 x .4)^2 = .64.
    bad = table[table["share"] == 0.4].set_index(["network", "method"])["mse"]
    for network in ("circle-5", "circle-12"):
        assert bad[network, "aDFL (default)"] < 0.1 < 0.4 < bad[network, "DFL"]
    assert (out / "statements.txt").read_text() in text
    assert cli.main(["reproduce", "figure1", "--network", "er", *command[2:-1], str(tmp_path / "er")]) == 0
    assert capsys.readouterr().out.count("reproduced: ") == 7


# ------------------------------------------------------------------ completion


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["che"], ["check-network"]),
        (["fit", "data.csv", "--att"], ["--attack", "--attackers", "--attack-option"]),
        (["reproduce", "fig"], ["figure1"]),
        (["completion", ""], ["--help", "bash", "zsh", "fish"]),
        (["reproduce", "figure1", "--network", ""], ["circle", "er"]),
    ],
)
def test_completion_in_bash(capsys, words, expected):
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    line = " ".join(f"'{word}'" for word in ["adfl-stats", *words])
    code = f'{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; _adfl_stats; printf "%s\\n" "${{COMPREPLY[@]}}"'
    told = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert sorted(told.stdout.split()) == sorted(expected)


def test_completion_of_other_shells(capsys):
    cli.main(["completion", "fish"])
    assert "__fish_seen_subcommand_from fit' -l formula" in capsys.readouterr().out
    cli.main(["completion", "zsh"])
    assert "autoload -U +X bashcompinit && bashcompinit" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("adfl-stats rep", {"report", "reproduce"}),
        ("adfl-stats fit --coef", {"--coef-csv"}),
        ("adfl-stats reproduce figure1 --network ", {"circle", "er"}),
    ],
)
def test_completion_in_fish(capsys, tmp_path, line, expected):
    cli.main(["completion", "fish"])
    code = f"{capsys.readouterr().out}\ncomplete -C '{line}'"
    own = os.environ | {"HOME": str(tmp_path)}
    told = subprocess.run(["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True, env=own)
    assert set(told.stdout.split()) == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_completion_loads_in_a_plain_zsh(capsys):
    cli.main(["completion", "zsh"])
    code = f"{capsys.readouterr().out}\nprint -- $_comps[adfl-stats]"
    told = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True)
    # The name of the function that completes the command.
    assert "_adfl_stats" in told.stdout, told.stderr


def test_every_command_has_help_with_an_example_and_its_statuses(capsys):
    for command in ("demo", "fit", "check-network", "study", "efficiency", "reproduce", "report"):
        with pytest.raises(SystemExit, match="0"):
            cli.main([command, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert f"adfl-stats {command} " in text.partition("xample")[2], command
        assert "Exit status: 0" in text, command
