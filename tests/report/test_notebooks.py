"""In a notebook: tables instead of texts, bars, and no warning where nothing is wrong."""

import pytest

CELLS = {
    "network": "import adfl_stats as ad\nnet = ad.networks.directed_circle(8, 3)\nnet",
    "results": (
        "sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=8, n=30, p=2)\n"
        "model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), net)\n"
        "res = model.fit()\nres"
    ),
    "screening": "ad.screen(res)",
    "rates": "model.rates(model.fit(ad.DFL(), step=0.1, rounds=50))",
    "check": "res.check()",
    "heterogeneity": "res.heterogeneity()",
    "prediction": "res.get_prediction(sim.X[:3])",
    "tidy": "res.tidy()",
}
BAR = "model.fit(ad.DFL(), step=0.1, rounds=3000, progress=True);"


@pytest.mark.filterwarnings("default")
def test_results_are_tables_and_rounds_have_a_bar():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in [*CELLS.values(), BAR]])
    nbclient.NotebookClient(notebook, timeout=120).execute()
    *shown, bar = notebook.cells
    for name, cell in zip(CELLS, shown, strict=True):
        assert not [output for output in cell.outputs if output.get("name") == "stderr"], name
        assert "<table" in cell.outputs[-1]["data"]["text/html"], name
    said = "".join(output.get("text", "") for output in bar.outputs if output.get("name") == "stderr")
    widgets = [output for output in bar.outputs if "application/vnd.jupyter.widget-view+json" in output.get("data", {})]
    assert "Warning" not in said
    assert "round" in said or widgets
