"""The vignettes run from the first cell to the last, without a warning they do not announce."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VIGNETTES = sorted(ROOT.joinpath("vignettes").glob("*.md"))


@pytest.fixture
def executed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.delitem(sys.modules, "executed", raising=False)
    return importlib.import_module("executed")


@pytest.mark.parametrize("path", VIGNETTES, ids=lambda path: path.stem)
# The machinery of notebooks warns of its own affairs; the vignette's code runs in another process.
@pytest.mark.filterwarnings("default")
def test_vignette_runs(path, executed):
    """The notebook is kept, and the site shows it."""
    notebook = executed.run(path.stem)
    assert executed.kept(path.stem) is not None
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "a vignette shows a picture"
    for cell in cells:
        errors = [output["text"] for output in cell.outputs if output.get("name") == "stderr"]
        # Cells with the tag "warns" show that rows were set aside, and the text speaks of it.
        if "warns" in cell.metadata.get("tags", []):
            assert len(errors) == 1, cell.source
            assert "SelectionWarning" in errors[0]
        else:
            assert not errors, errors


def test_there_are_vignettes():
    assert VIGNETTES


@pytest.mark.parametrize("path", VIGNETTES, ids=lambda path: path.stem)
def test_vignettes_say_what_they_assume_and_check_their_numbers(path):
    text = path.read_text(encoding="utf-8")
    assert "Assumed" in text
    assert "## To take away" in text
    hidden = re.findall(r"```\{code-cell\} ipython3\n:tags: \[remove-cell\]\n(.*?)```", text, re.S)
    assert any("assert " in cell for cell in hidden), "key numbers are asserted in a cell that the site hides"
    # About what a page of the site shows without scrolling.
    code = "".join(re.findall(r"```\{code-cell\} ipython3\n(.*?)```", text.replace("".join(hidden), ""), re.S))
    assert max(map(len, code.splitlines())) <= 100, max(code.splitlines(), key=len)


def test_a_kept_notebook_counts_while_nothing_changes(executed, tmp_path, monkeypatch):
    monkeypatch.setattr(executed, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(executed, "VIGNETTES", tmp_path)
    source = tmp_path / "small.md"
    source.write_text("# Small\n\n```{code-cell} ipython3\n1 + 1\n```\n", encoding="utf-8")
    assert executed.kept("small") is None
    notebook = executed.nbformat.v4.new_notebook(metadata={"fingerprint": executed.fingerprint("small")})
    (tmp_path / "kept").mkdir()
    executed.nbformat.write(notebook, tmp_path / "kept" / "small.ipynb")
    assert executed.kept("small") is not None
    source.write_text(source.read_text(encoding="utf-8").replace("1 + 1", "1 + 2"), encoding="utf-8")
    assert executed.kept("small") is None
