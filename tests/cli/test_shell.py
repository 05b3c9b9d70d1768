"""How commands behave in a shell: files to write, encodings, interruption, ``python -m``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import adfl_stats as ad
from adfl_stats.cli import main as cli


@pytest.fixture
def files(tmp_path):
    """A folder with rows and edges of four sites, whose names are not ASCII."""
    sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=4, n=30, p=2)
    frame = sim.frame().rename(columns={sim.frame().columns[0]: "site"})
    frame["site"] = frame["site"].map(
        dict(zip(frame["site"].unique(), ["Zürich", "Genève", "東京", "Oslo"], strict=True))
    )
    frame.to_csv(tmp_path / "rows.csv", index=False)
    net = ad.networks.complete(4, labels=list(frame["site"].unique()))
    rows = [f"{a},{b}" for a in net.labels for b in net.labels]
    (tmp_path / "edges.csv").write_text("\n".join(["source,target", *rows]), encoding="utf-8")
    return tmp_path


def fit_command(folder, *options):
    return ["fit", f"{folder}/rows.csv", "--formula", "y ~ x1 + x2", "--client", "site", "--edges",
            f"{folder}/edges.csv", *options]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none/fit.out", "there is no folder"),
        ("folder", "is a folder; name a file to write"),
        ("", "is empty; name a file to write"),
    ],
)
@pytest.mark.parametrize("option", ["--save", "--html", "--clients"])
def test_output_paths_are_checked_before_the_work(files, monkeypatch, capsys, option, path, reason):
    (files / "folder").mkdir()
    monkeypatch.setattr(ad.DecentralizedGLM, "fit", lambda *_, **__: pytest.fail("the fit began"))
    with pytest.raises(SystemExit, match="2"):
        cli.main(fit_command(files, option, f"{files}/{path}" if path else ""))
    said = capsys.readouterr().err
    assert f"argument {option}" in said
    assert reason in said


@pytest.mark.parametrize(
    "command",
    [("efficiency", "--output", "/none/x.csv"), ("check-network", "edges.csv", "--json", "/none/x.json")],
)
def test_outputs_of_other_commands_are_checked_too(capsys, command):
    with pytest.raises(SystemExit, match="2"):
        cli.main(list(command))
    assert "there is no folder '/none'" in capsys.readouterr().err


def test_a_file_without_permission_is_refused(files, monkeypatch, capsys):
    # Permissions do not bind the superuser, whom tests may run as.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SystemExit, match="2"):
        cli.main(fit_command(files, "--save", str(files / "fit.npz")))
    assert "permission denied" in capsys.readouterr().err


def test_a_figure_of_no_known_format_is_refused_before_the_report(files, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["check-network", f"{files}/edges.csv", "--plot", str(files / "net.doc")])
    told = capsys.readouterr()
    assert told.out == ""
    assert "does not end in a format of figures: .png" in told.err


def test_labels_outside_ascii_on_an_ascii_terminal(files):
    command = [sys.executable, "-m", "adfl_stats", *fit_command(files, "--clients", str(files / "clients.csv"))]
    told = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert told.returncode == 0, told.stderr.decode()
    assert rb"Z\xfcrich" in told.stdout
    assert "東京" in (files / "clients.csv").read_text(encoding="utf-8")


def test_the_same_labels_where_the_terminal_has_them(files):
    command = [sys.executable, "-m", "adfl_stats", *fit_command(files)]
    told = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "utf-8"}, capture_output=True, check=True)
    assert "Zürich" in told.stdout.decode("utf-8")


def test_interruption_is_one_line_and_130():
    code = (
        "import os, signal, sys, threading\n"
        "from adfl_stats.cli.main import main\n"
        "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "sys.exit(main(['efficiency', '--jobs', '1', '--replicates', '1000']))\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 130
    (line,) = told.stderr.splitlines()
    assert line.startswith("adfl-stats: interrupted")


def test_interruption_while_the_package_is_imported(tmp_path):
    (tmp_path / "formulaic.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nos.sched_yield()\n")
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(ad.__file__).parent.parent)])}
    code = "import sys; from adfl_stats_command import main; sys.exit(main())"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, check=False)
    assert told.returncode == 130
    assert told.stderr == "adfl-stats: interrupted\n"


def test_module_runs_as_a_program():
    told = subprocess.run([sys.executable, "-m", "adfl_stats", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"adfl-stats {ad.__version__}\n"


@pytest.mark.parametrize("words", [["fit", "--save", "/no/such/folder/x.npz"], ["fit"], ["nothing"], ["demo", "--bad"]])
def test_wrong_words_are_refused_in_one_line(words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("adfl-stats")
    assert "--help" in said
