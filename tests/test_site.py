"""The site's sources: every public name has its page, and what the pages name exists."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm

import adfl_stats as ad

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture
def build(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "build", raising=False)
    return importlib.import_module("build")


def test_every_public_name_is_in_the_reference(build):
    names = [name for part in build.public_names().values() for name in part]
    for name in names:
        module, _, member = name.rpartition(".")
        assert hasattr(importlib.import_module(module), member), name
    assert len(names) == len(set(names))
    assert set(ad.__all__) - set(build.NAMESPACES) == {name.partition(".")[2] for name in names if name.count(".") == 1}
    page = build.reference()
    assert all(f"   {name}\n" in page for name in names)


def test_the_map_of_the_theory_names_files_that_exist():
    text = (DOCS / "theory.md").read_text(encoding="utf-8")
    paths = re.findall(r"`(tests/[^`]+)`", text)
    modules = [name for name in re.findall(r"`([a-z_]+\.[a-z_0-9]+)`", text) if not name.startswith(("net.", "ad."))]
    public = re.findall(r"`ad\.(\w+)", text)
    assert len(paths) > 12
    for path in paths:
        assert (ROOT / path).is_file(), path
    for name in modules:
        importlib.import_module(f"adfl_stats.{name}")
    assert not [name for name in public if not hasattr(ad, name)]


def test_pages_are_reached_from_the_first(build, tmp_path, monkeypatch):
    """Sphinx fails on a page in no table of contents; here the same without building the site."""
    monkeypatch.setattr(build, "_mathjax", lambda: DOCS / "conf.py")
    source = tmp_path / "source"
    build.lay_out(source, {})
    pages = {path.relative_to(source).with_suffix("").as_posix() for path in source.rglob("*.md")}
    listed = set()
    for page in pages:
        text = (source / f"{page}.md").read_text(encoding="utf-8")
        for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.S):
            listed |= {line for line in block.splitlines() if line and not line.startswith(":")}
    assert pages - listed == {"index"}
    assert listed <= pages


def test_links_that_lead_nowhere_are_found(build, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "theme.html").write_text('<a href="{{ anything }}">')
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a class="x" href="sub/b.html#part%201">good</a><a href="#top">good</a>'
        '<a href="https://example.org/none">elsewhere</a><a href="mailto:a@b.c">post</a>'
        '<a href="gone.html">bad</a><img src="lost.png"><a href="sub/b.html#not&amp;there">bad</a>'
    )
    (tmp_path / "sub" / "b.html").write_text('<p id="part 1"></p><a href="../a.html#top">good</a><a href="#no">bad</a>')
    assert sorted(build.broken_links(tmp_path)) == [
        "a.html: gone.html",
        "a.html: lost.png",
        "a.html: sub/b.html#not&amp;there",
        "sub/b.html: #no",
    ]


def test_links_to_vignettes_follow_their_notebooks(build, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_mathjax", lambda: DOCS / "conf.py")
    text = "[a](your-own-data.md), [b](images.md) and [c](../docs/theory.md)"
    cells = [build.nbformat.v4.new_markdown_cell(text)]
    build.lay_out(tmp_path / "s", {"your-own-data": build.nbformat.v4.new_notebook(cells=cells)})
    laid = build.nbformat.read(tmp_path / "s" / "vignettes" / "your-own-data.ipynb", as_version=4)
    assert laid.cells[0].source == "[a](your-own-data.ipynb), [b](images.md) and [c](../theory.md)"
    assert not (tmp_path / "s" / "vignettes" / "your-own-data.md").exists()


def test_the_first_page_shows_code_that_runs(capsys):
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", text, re.S)[1], {})
    assert "standLRT" in capsys.readouterr().out


def test_names_that_statsmodels_and_we_share_exist():
    """Of the table for users of statsmodels: where the right side says "the same", both have the name."""
    y, X = np.arange(4.0), np.ones((4, 1))
    peers = [sm.GLM(y, X), sm.GLM(y, X).fit(), sm.OLS(y, X).fit()]
    rows = [line.split("|")[1:3] for line in (DOCS / "migration.md").read_text(encoding="utf-8").splitlines()]
    names = []
    for theirs, ours in (row for row in rows if len(row) == 2):
        if ours.strip().startswith("the same"):
            names += re.findall(r"`([a-z_]+)(?:\([^`]*\))?`", theirs)
    assert len(names) > 15
    for name in names:
        if name != "summary_col":
            assert hasattr(ad.Results, name) or hasattr(ad.DecentralizedGLM, name), name
            assert any(name in dir(peer) for peer in peers), name


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_tables_are_made_as_the_page_says(capsys):
    text = (DOCS / "tables.md").read_text(encoding="utf-8")
    first, second, tools = re.findall(r"```python\n(.*?)```", text, re.S)
    space = {}
    exec(first + second + tools.partition("from stargazer")[0], space)
    shown = capsys.readouterr().out
    assert "decentralised" in shown
    assert f"{space['pooled'].params['standLRT']:.4f}" in shown
    assert list(space["res"].tidy().columns) == re.search(r"# (term.*)", first)[1].split(", ")
    assert (space["as_glm"].bse - space["res"].bse).abs().max() < 1e-12
