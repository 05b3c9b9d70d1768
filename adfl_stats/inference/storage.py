"""Results in a file: arrays in a NumPy archive, words and numbers as JSON inside it, no pickle."""

from __future__ import annotations

import json
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from adfl_stats.engine.numerical_error import NumericalError
from adfl_stats.inference.client_record import ClientRecord
from adfl_stats.inference.clustered import Clustered
from adfl_stats.inference.evidence import Evidence
from adfl_stats.inference.record import FitRecord, Start
from adfl_stats.inference.results import Results
from adfl_stats.losses.evaluation import Evaluation
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Ridge
from adfl_stats.network.archive import from_arrays, to_arrays

__all__ = ["load", "save"]

FORMAT = 5
_ARRAYS = ("theta", "weights", "total_weights", "sizes")
_WORDS = (
    "method", "weighted", "details", "tolerance", "solver", "step", "rounds", "total_rounds", "columns", "classes",
    "y_name", "client_name", "llf", "deviance", "preconditioned", "smooth", "n_dropped",
    "cov_type", "weighting", "rounds_needed",
)  # fmt: skip


def save(fit: FitRecord, path: str | PathLike[str]) -> None:
    """Write a fit to `path` (a name without ``.npz`` gets it, here and in `load`)."""
    arrays = {name: getattr(fit, name) for name in _ARRAYS}
    arrays |= {f"evaluation.{part.name}": np.asarray(getattr(fit.evaluation, part.name)) for part in fields(Evaluation)}
    arrays |= {f"evidence.{part.name}": getattr(fit.evidence, part.name) for part in fields(Evidence)}
    arrays |= {f"start.{part.name}": np.asarray(getattr(fit.start, part.name)) for part in fields(Start)}
    arrays |= {f"clustered.{name}": value for name, value in fit.clustered.arrays().items()}
    arrays |= {f"clients.{name}": value for name, value in fit.clients.arrays().items()}
    weights, changes = to_arrays(fit.network)
    arrays |= weights
    arrays |= {f"trace.{name}": fit.trace[name].to_numpy() for name in fit.trace}
    words = {name: getattr(fit, name) for name in _WORDS} | {
        "format": FORMAT,
        "family": {part.name: getattr(fit.family, part.name) for part in fields(Family)},
        "error": {part.name: getattr(fit.error, part.name) for part in fields(NumericalError)},
        "labels": [_plain(label) for label in fit.labels],
        "clients": fit.clients.words(),
        "penalty": None if fit.penalty is None else fit.penalty.c.tolist(),
        "schedule": changes,
    }
    arrays["json"] = np.frombuffer(json.dumps(words, default=_plain).encode(), dtype=np.uint8)
    np.savez_compressed(path, **arrays)


def load(path: str | PathLike[str]) -> Results:
    """Read results written by `Results.save`.

    Everything comes back exactly, but for the data and the formula's specification, which a file does
    not keep: predictions then need the model's own columns.
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
    pieces = _part(arrays, "evaluation")
    trace = pd.DataFrame(_part(arrays, "trace"))
    fit = FitRecord(
        **{name: arrays[name] for name in _ARRAYS},
        **{name: words[name] for name in _WORDS if name != "classes"},
        classes=None if words["classes"] is None else tuple(words["classes"]),
        family=Family(**words["family"]),
        network=from_arrays(arrays, words.get("schedule"), labels),
        evaluation=Evaluation(**(pieces | {"scale": float(pieces["scale"])})),
        evidence=Evidence(**_part(arrays, "evidence")),
        clustered=Clustered.of_arrays(_part(arrays, "clustered")),
        clients=ClientRecord(**words["clients"], **_part(arrays, "clients")),
        error=NumericalError(**words["error"]),
        start=Start(arrays["start.centre"], float(arrays["start.spread"]), float(arrays["start.reach"])),
        labels=labels,
        trace=trace,
        penalty=None if words["penalty"] is None else Ridge(np.array(words["penalty"])),
    )
    return Results(fit)


def _part(arrays: dict[str, Any], name: str) -> dict[str, Any]:
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
