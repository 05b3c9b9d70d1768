"""The vignettes run from the first cell to the last, without a warning they do not announce."""

from pathlib import Path

import pytest

VIGNETTES = sorted(Path(__file__).parents[1].joinpath("vignettes").glob("*.md"))


@pytest.mark.parametrize("path", VIGNETTES, ids=lambda path: path.stem)
# The machinery of notebooks warns of its own affairs; the vignette's code runs in another process.
@pytest.mark.filterwarnings("default")
def test_vignette_runs(path, tmp_path):
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(path)
    executed = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in executed.cells if cell.cell_type == "code"]
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
