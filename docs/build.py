"""Build the site: documents, executed vignettes, and a page for every public name.

    python docs/build.py [--out DIR] [--no-execute]

Needs ``pip install -e ".[site]"``. A warning of Sphinx is an error: a link that leads nowhere, a name that does not
exist. Nothing is loaded from elsewhere, neither while building nor by the pages.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from importlib.metadata import files
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Namespaces of the package with names of their own, and what they hold.
NAMESPACES = {
    "networks": "Networks by construction, and networks that change",
    "datasets": "Real data by name",
    "simulate": "Designs with a known truth, and corruptions",
    "study": "Studies of the paper's designs",
    "attacks": "Clients that lie to their neighbours",
    "losses": "Losses in JAX and PyTorch",
    "plots": "Plots",
    "theory": "What reports are made of",
}
GROUPS = {
    "Data, network, model": [
        "ClientData", "Network", "DecentralizedGLM", "DecentralizedModel", "Losses", "family", "Huber", "Ridge",
        "mallows",
    ],
    "Methods": [
        "ADFL", "DFL", "Oracle", "Local", "Bridge", "ClippedGossip", "GeometricMedian", "IOS", "NNA", "UBAR", "SLBRN",
        "Extra", "GradientTracking", "TrimmedScores", "Method",
    ],
    "Results": [
        "Results", "load", "screen", "Screening", "Heterogeneity", "OracleComparison", "Sensitivity", "Bootstrap",
        "Majority", "compare_starts",
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


def lay_out(source: Path) -> None:
    """Put documents, vignettes and the reference into one folder."""
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("*.py", "_build"))
    shutil.copy(DOCS / "conf.py", source)
    shutil.copytree(ROOT / "vignettes", source / "vignettes")
    for path in source.glob("*.md"):
        # Links that are right in the repository.
        text = path.read_text(encoding="utf-8").replace("(../CONTRIBUTING.md", "(contributing.md")
        path.write_text(text.replace("(../vignettes/", "(vignettes/"), encoding="utf-8")
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = _without_links((ROOT / f"{name}.md").read_text(encoding="utf-8"))
        (source / f"{name.lower()}.md").write_text(text, encoding="utf-8")
    (source / "reference.md").write_text(reference(), encoding="utf-8")
    others = sorted(path.stem for path in (source / "vignettes").glob("*.md") if path.stem != "first-fit")
    listed = "\n".join(f"vignettes/{name}" for name in others)
    learn = source / "learn.md"
    learn.write_text(learn.read_text(encoding="utf-8").replace("VIGNETTES", listed), encoding="utf-8")
    static = source / "_static"
    static.mkdir(exist_ok=True)
    shutil.copy(_mathjax(), static)


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
    lay_out(source)
    execute = ["-D", "nb_execution_mode=off"] if options.no_execute else []
    status = sphinx(["-b", "html", "-W", "--keep-going", "-q", "-j", "auto", *execute, str(source), str(work / "html")])
    if status == 0:
        print(work / "html" / "index.html")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
