"""Results in a file: arrays in a NumPy archive, words and numbers as JSON inside it, no pickle."""

from __future__ import annotations

import json
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from adfl_stats.engine.numerical_error import NumericalError
from adfl_stats.inference.at_estimate import AtEstimate, Goodness
from adfl_stats.inference.client_record import ClientEffects, ClientRecord
from adfl_stats.inference.clustered import Clustered
from adfl_stats.inference.evidence import Evidence
from adfl_stats.inference.objective_results import ObjectiveRecord, ObjectiveResults
from adfl_stats.inference.record import FitRecord, RunRecord, Start
from adfl_stats.inference.results import Results
from adfl_stats.losses.evaluation import Evaluation
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Ridge
from adfl_stats.losses.regularity import Regularity
from adfl_stats.network.archive import from_arrays, to_arrays

__all__ = ["load", "save"]

T = TypeVar("T")

FORMAT = 6
# What records of all objectives have.
_RUN_ARRAYS = ("theta", "weights", "total_weights", "set_aside")
_RUN_WORDS = (
    "method", "weighted", "details", "tolerance", "solver", "step", "rounds", "rounds_needed", "total_rounds", "smooth",
    "names", "client_name", "weighting",
)  # fmt: skip
_WORDS = ("columns", "classes", "y_name", "n_dropped", "chosen_cov_type")
# Parts of inference that are arrays and numbers.
_PARTS: dict[str, type[Any]] = {
    "evaluation": Evaluation,
    "effects": ClientEffects,
    "clustered": Clustered,
    "evidence": Evidence,
    "regularity": Regularity,
    "goodness": Goodness,
    "error": NumericalError,
}


def save(record: RunRecord, path: str | PathLike[str]) -> None:
    """Write a record to `path` (a name without ``.npz`` gets it, here and in `load`)."""
    arrays = {name: getattr(record, name) for name in _RUN_ARRAYS} | _arrays("start", record.start)
    weights, changes = to_arrays(record.network)
    arrays |= weights
    arrays |= {f"trace.{name}": values for name, values in record.trace_columns.items()}
    words = {name: getattr(record, name) for name in _RUN_WORDS} | {
        "format": FORMAT,
        "labels": [_plain(label) for label in record.labels],
        "schedule": changes,
    }
    if isinstance(record, FitRecord):
        _add_fit(record, arrays, words)
    elif isinstance(record, ObjectiveRecord):
        arrays |= {f"objective.{name}": getattr(record, name) for name in ("totals", "gradients", "hessian")}
    arrays["json"] = np.frombuffer(json.dumps(words, default=_plain).encode(), dtype=np.uint8)
    np.savez_compressed(path, **arrays)


def _add_fit(fit: FitRecord, arrays: dict[str, Any], words: dict[str, Any]) -> None:
    """Add what the record of a GLM has beyond that of a run."""
    parts = fit.at_estimate.parts()
    arrays["sizes"] = fit.sizes
    if fit.metric is not None:
        arrays["metric"] = fit.metric
    for name in _PARTS:
        arrays |= _arrays(name, parts[name])
    glance = None if fit.glance is fit.clients else fit.glance
    arrays |= {f"clients.{name}": value for name, value in fit.clients.arrays().items()}
    arrays |= {} if glance is None else {f"glance.{name}": value for name, value in glance.arrays().items()}
    words |= {name: getattr(fit, name) for name in _WORDS} | {
        "family": {part.name: getattr(fit.family, part.name) for part in fields(Family)},
        "clients": fit.clients.words(),
        "glance": None if glance is None else glance.words(),
        "penalty": None if fit.penalty is None else fit.penalty.strengths.tolist(),
    }


def load(path: str | PathLike[str]) -> Results | ObjectiveResults:
    """Read results written by their `save`.

    Everything is restored exactly but for the data and the formula's specification, which a file does
    not keep: predictions then need the model's own columns.

    Parameters
    ----------
    path : str or path
        The file; ``.npz`` is added where it has no ending and does not exist.

    Returns
    -------
    Results or ObjectiveResults
        Results of a GLM, or those of another objective.

    Examples
    --------
    >>> import tempfile
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3)).fit()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     res.save(f"{folder}/fit")
    ...     again = ad.load(f"{folder}/fit")
    >>> again.params.equals(res.params)
    True
    """
    path = Path(path)
    path = path if path.suffix == ".npz" or path.exists() else path.with_name(path.name + ".npz")
    try:
        # Opened here, because np.load leaves a file that it cannot read open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
        words = json.loads(arrays.pop("json").tobytes())
        found = words["format"]
    except (KeyError, TypeError, ValueError, EOFError, BadZipFile) as error:
        raise ValueError(
            f"{path} does not hold results written by Results.save ({type(error).__name__} on reading it)"
        ) from error
    if found != FORMAT:
        raise ValueError(f"{path} has format {found}, this version reads format {FORMAT}")
    labels = pd.Index(words["labels"])
    run = {name: arrays[name] for name in _RUN_ARRAYS} | {name: words[name] for name in _RUN_WORDS}
    run |= {"labels": labels, "network": from_arrays(arrays, words["schedule"], labels)}
    run |= {"start": _record(Start, arrays, "start"), "trace_columns": _named(arrays, "trace")}
    if "family" not in words:
        return ObjectiveResults(ObjectiveRecord(**run, **_named(arrays, "objective")))
    return Results(_loaded_fit(run, arrays, words))


def _loaded_fit(run: dict[str, Any], arrays: dict[str, Any], words: dict[str, Any]) -> FitRecord:
    """Return the record of a GLM."""
    parts: dict[str, Any] = {name: _record(kind, arrays, name) for name, kind in _PARTS.items()}
    parts["clients"] = ClientRecord(**words["clients"], **_named(arrays, "clients"))
    parts["glance"] = parts["clients"]
    if words.get("glance") is not None:
        parts["glance"] = ClientRecord(**words["glance"], **_named(arrays, "glance"))
    return FitRecord(
        **run,
        **{name: words[name] for name in _WORDS if name != "classes"},
        classes=None if words["classes"] is None else tuple(words["classes"]),
        sizes=arrays["sizes"],
        metric=arrays.get("metric"),
        family=Family(**words["family"]),
        at_estimate=AtEstimate.of_parts(parts),
        penalty=None if words["penalty"] is None else Ridge(np.array(words["penalty"])),
    )


def _arrays(name: str, record: Any) -> dict[str, Any]:
    """Return the fields of a record as arrays; the way to clients elsewhere is none."""
    names = [part.name for part in fields(record) if part.name != "members"]
    return {f"{name}.{key}": np.asarray(getattr(record, key)) for key in names}


def _record(kind: type[T], arrays: dict[str, Any], name: str) -> T:
    """Return the record whose `_arrays` these are: single numbers are numbers again."""
    return kind(**{key: value if value.ndim else value.item() for key, value in _named(arrays, name).items()})


def _named(arrays: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the arrays of one record, by the names of its fields."""
    return {key.removeprefix(f"{name}."): value for key, value in arrays.items() if key.startswith(f"{name}.")}


def _plain(value: Any) -> Any:
    """Return a value JSON can hold and give back as it was."""
    found = value.item() if isinstance(value, np.generic) else value
    if not isinstance(found, (int, float, str)):
        raise ValueError(
            f"the label {value!r} ({type(value).__name__}) cannot be saved; use numbers or text for clients and classes"
        )
    return found
