"""Run vignettes, and keep what they show, so that tests and site need not both run them.

    python docs/executed.py [NAME ...]

prints the processor time of each vignette. A kept notebook counts while the vignette, the package and the libraries are
those that it was run with; the tests always run their vignettes, and the site takes what they kept.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[1]
VIGNETTES = ROOT / "vignettes"
KEPT = ROOT / "build" / "vignettes"
LIBRARIES = ("numpy", "scipy", "pandas", "statsmodels", "formulaic", "matplotlib")
# Seconds for one cell.
TIMEOUT = 300


def names() -> list[str]:
    """Return the vignettes' names in order."""
    return sorted(path.stem for path in VIGNETTES.glob("*.md"))


def fingerprint(name: str) -> str:
    """Return a hash of everything that the vignette's output depends on."""
    digest = hashlib.sha256(sys.version.encode())
    for library in LIBRARIES:
        digest.update(f"{library} {version(library)}".encode())
    package = [*(ROOT / "adfl_stats").rglob("*.py"), *(ROOT / "src_ext").glob("*.pyx"), *(ROOT / "src_ext").glob("*.h")]
    for path in [VIGNETTES / f"{name}.md", *sorted(package)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(name: str) -> Any:
    """Run a vignette in an empty folder, keep the notebook and return it."""
    import jupytext
    from nbclient import NotebookClient

    mark = fingerprint(name)
    notebook = jupytext.read(VIGNETTES / f"{name}.md")
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": folder}}).execute()
    notebook.metadata["fingerprint"] = mark
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=KEPT, suffix=".part", delete=False, encoding="utf-8") as stream:
        nbformat.write(notebook, stream)
    os.replace(stream.name, KEPT / f"{name}.ipynb")
    return notebook


def kept(name: str) -> Any | None:
    """Return the vignette's notebook if one was kept and still counts."""
    path = KEPT / f"{name}.ipynb"
    if not path.is_file():
        return None
    notebook = nbformat.read(path, as_version=4)
    return notebook if notebook.metadata.get("fingerprint") == fingerprint(name) else None


def notebooks(jobs: int = 2) -> dict[str, Any]:
    """Return every vignette with its output, run where none is kept."""

    def one(name: str) -> Any:
        return kept(name) or run(name)

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(names(), pool.map(one, names()), strict=True))


if __name__ == "__main__":
    spent = 0.0
    for chosen in sys.argv[1:] or names():
        run(chosen)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        total = usage.ru_utime + usage.ru_stime
        print(f"{chosen:30}{total - spent:6.1f} s", flush=True)
        spent = total
    print(f"{'together':30}{spent:6.1f} s")
