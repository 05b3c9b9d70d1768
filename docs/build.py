"""Build the site: documents, executed vignettes, and a page for every public name.

    python docs/build.py [--out DIR] [--no-execute]

Needs ``pip install -e ".[site]"``. Vignettes are run, unless the tests have run them and kept what they show (see
executed.py). A warning of Sphinx is an error, and so is a link within the site that leads nowhere. Nothing is loaded
from elsewhere, neither while building nor by the pages.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable
from html import unescape
from importlib.metadata import files
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import executed
import nbformat

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Namespaces of the package with names of their own, and what they hold.
NAMESPACES = {
    "networks": "Networks by construction, and networks that change",
    "datasets": "Real data by name",
    "simulate": "Designs with a known truth, and corruptions",
    "study": "Studies of the paper's designs",
    "attacks": "Clients that send false messages",
    "losses": "Losses in JAX and PyTorch, and private ones",
    "plots": "Plots",
    "theory": "What reports are made of",
}
GROUPS = {
    "Data, network, model": [
        "ClientData", "Network", "DecentralizedGLM", "DecentralizedModel", "Losses", "family", "Huber", "Ridge",
        "mallows", "MPI", "RankData", "Gossip",
    ],
    "Methods": [
        "ADFL", "DFL", "Oracle", "Local", "Bridge", "ClippedGossip", "GeometricMedian", "IOS", "NNA", "UBAR", "SLBRN",
        "Extra", "GradientTracking", "TrimmedScores", "Method",
    ],
    "Results": [
        "Results", "load", "screen", "Screening", "Heterogeneity", "OracleComparison", "Sensitivity", "Bootstrap",
        "Majority", "compare_starts", "class_agreement", "ClassAgreement",
    ],
    "Theory": ["check_network", "design", "Design"],
    "Studies": ["Study", "efficiency_report"],
    "Warnings and errors": [
        "AdflWarning", "ConditionWarning", "ConvergenceWarning", "NetworkWarning", "SelectionWarning", "StorageWarning",
        "DivergenceError", "StorageError",
    ],
}  # fmt: skip


def public_names() -> dict[str, list[str]]:
    """Return the names of each part of the reference; end where one is in no part, or does not exist."""
    import adfl_stats as ad

    listed = {name for names in GROUPS.values() for name in names} | set(NAMESPACES)
    if listed != set(ad.__all__):
        raise SystemExit(f"docs/build.py lists other names than adfl_stats.__all__: {sorted(listed ^ set(ad.__all__))}")
    parts = {title: [f"adfl_stats.{name}" for name in names] for title, names in GROUPS.items()}
    for name, title in NAMESPACES.items():
        module: ModuleType = getattr(ad, name)
        parts[f"{title} (`ad.{name}`)"] = [f"{module.__name__}.{member}" for member in module.__all__]
    return parts


def reference() -> str:
    """Return the page that lists every public name, with a page for each."""
    lines = ["# Reference", "", "Every public name; `import adfl_stats as ad`.", ""]
    for title, names in public_names().items():
        lines += [f"## {title}", "", "```{eval-rst}", ".. autosummary::", "   :toctree: generated", ""]
        lines += [f"   {name}" for name in names] + ["```", ""]
    return "\n".join(lines)


def lay_out(source: Path, notebooks: dict[str, nbformat.NotebookNode]) -> None:
    """Put documents, vignettes and the reference into one folder."""
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("*.py", "_build", "__pycache__"))
    shutil.copy(DOCS / "conf.py", source)
    _lay_out_vignettes(source / "vignettes", notebooks)
    for path in source.glob("*.md"):
        # Links that are right in the repository.
        text = path.read_text(encoding="utf-8").replace("(../CONTRIBUTING.md", "(contributing.md")
        path.write_text(re.sub(r"\(\.\./vignettes/([\w-]+)\.md", _to(notebooks, "vignettes/"), text), encoding="utf-8")
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = _without_links((ROOT / f"{name}.md").read_text(encoding="utf-8"))
        (source / f"{name.lower()}.md").write_text(text, encoding="utf-8")
    (source / "reference.md").write_text(reference(), encoding="utf-8")
    static = source / "_static"
    static.mkdir(exist_ok=True)
    shutil.copy(_mathjax(), static)


def _lay_out_vignettes(folder: Path, notebooks: dict[str, nbformat.NotebookNode]) -> None:
    """Put vignettes into a folder, as notebooks with their output where there are any."""
    shutil.copytree(ROOT / "vignettes", folder, ignore=shutil.ignore_patterns("*.ipynb"))
    for path in folder.glob("*.md"):
        text = path.read_text(encoding="utf-8").replace("(../docs/", "(../")
        path.write_text(text, encoding="utf-8")
    for name, notebook in notebooks.items():
        (folder / f"{name}.md").unlink()
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                text = cell.source.replace("(../docs/", "(../")
                cell.source = re.sub(r"\(([\w-]+)\.md", _to(notebooks, ""), text)
        nbformat.write(notebook, folder / f"{name}.ipynb")


def _to(notebooks: dict[str, nbformat.NotebookNode], folder: str) -> Callable[[re.Match[str]], str]:
    """Return what a link to a vignette becomes: its file is a notebook where it has output."""
    return lambda found: f"({folder}{found[1]}.{'ipynb' if found[1] in notebooks else 'md'}"


def broken_links(html: Path) -> list[str]:
    """Return links and anchors within a built site that lead nowhere, each with the page that has it."""
    found, anchors = [], {}
    pages = {path: path.read_text(encoding="utf-8") for path in html.rglob("*.html") if "_static" not in path.parts}
    for path, text in pages.items():
        anchors[path] = set(re.findall(r'\bid="([^"]+)"', text))
    for path, text in pages.items():
        for link in re.findall(r'<(?:a|img|link|script)\b[^>]*?\b(?:href|src)="([^"]+)"', text):
            parts = urlsplit(unescape(link))
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            lost = parts.fragment and target in pages and unquote(parts.fragment) not in anchors[target]
            if not target.exists() or lost:
                found.append(f"{path.relative_to(html)}: {link}")
    return found


def _without_links(text: str) -> str:
    """Return text in which links to files of the repository are their words, since the site does not have these."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)", r"\1", text)


def _mathjax() -> Path:
    for file in files("sphinx-mathjax-offline") or []:
        if file.name == "tex-svg.js":
            return Path(str(file.locate()))
    raise SystemExit('tex-svg.js of MathJax is not there; install it: pip install -e ".[site]"')


def main(arguments: list[str] | None = None) -> int:
    """Build the site and return Sphinx's exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--no-execute", action="store_true", help="do not run the vignettes")
    options = parser.parse_args(arguments)
    from sphinx.cmd.build import main as sphinx

    work = options.out.resolve()
    source = work / "source"
    shutil.rmtree(source, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    lay_out(source, {} if options.no_execute else executed.notebooks())
    html = work / "html"
    status = int(sphinx(["-b", "html", "-W", "--keep-going", "-q", "-j", "auto", str(source), str(html)]))
    broken = broken_links(html)
    if broken:
        print("links that lead nowhere:", *broken, sep="\n  ", file=sys.stderr)
    elif status == 0:
        print(html / "index.html")
    return status or bool(broken)


if __name__ == "__main__":
    sys.exit(main())
