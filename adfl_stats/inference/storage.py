"""Results in a file: arrays in a NumPy archive, words and numbers as JSON inside it, no pickle.

The archive ends with a digest of its content. What a file announces is checked before memory is taken for it, and
what it holds before results are made of it: shapes, types, finite estimates, a network whose weights sum to one.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from os import PathLike
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from adfl_stats._archives import read_arrays, write_arrays
from adfl_stats._files import place_of, refuse_absent
from adfl_stats.data.formula_state import formula_of, words_of
from adfl_stats.engine.ledger import Ledger
from adfl_stats.engine.numerical_error import NumericalError
from adfl_stats.engine.transport import Local, Members, batch_bounds
from adfl_stats.errors import StorageError
from adfl_stats.inference.at_estimate import AtEstimate, Goodness
from adfl_stats.inference.by_row import ByRow
from adfl_stats.inference.client_diagnostics import ClientDiagnostics
from adfl_stats.inference.client_record import ClientEffects, ClientRecord
from adfl_stats.inference.clustered import Clustered
from adfl_stats.inference.objective_results import ObjectiveRecord, ObjectiveResults
from adfl_stats.inference.record import FitRecord, RunRecord, Start
from adfl_stats.inference.results import Results
from adfl_stats.losses.entry_names import EntryNames
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Ridge
from adfl_stats.losses.point_sums import WeightedSums
from adfl_stats.losses.regularity import Regularity
from adfl_stats.network.archive import from_arrays, to_arrays

__all__ = ["load", "save"]

T = TypeVar("T")

FORMAT = 9
# What records of all objectives have.
_RUN_ARRAYS = ("theta", "weights", "total_weights", "set_aside")
_RUN_WORDS = (
    "method", "weighted", "details", "tolerance", "solver", "step", "rounds", "rounds_needed", "total_rounds", "smooth",
    "names", "client_name", "weighting",
)  # fmt: skip
_WORDS = ("columns", "classes", "y_name", "n_dropped")
# Axes of the arrays: clients (M), parameters (P), components of the model of clients (3), and any number (n); with
# an exclamation mark all numbers must be finite.
_AXES = {
    "theta": "MP!", "weights": "M!", "total_weights": "M!", "set_aside": "M", "sizes": "M!", "start.centre": "P",
    "discrepancies": "M!",
    "start.spread": "", "start.reach": "", "objective.totals": "M!", "objective.gradients": "MP",
    "objective.hessian": "nn", "objective.noise": "nn", "trace.run": "n", "trace.round": "n", "trace.step": "n",
    "trace.moved": "n", "trace.consensus": "n", "weighted_sums.gradients": "MP", "weighted_sums.hessian": "PP",
    "weighted_sums.information": "PP", "weighted_sums.meat": "PP", "weighted_sums.model_meat": "PP",
    "weighted_sums.scale": "", "effects.deviations": "MP", "effects.errors": "MP", "effects.effects": "MP",
    "effects.effect_errors": "MP", "clustered.clients": "", "clustered.rows": "", "clustered.cr2": "nP",
    "clustered.cr3": "nP", "clustered.df": "P", "clustered.working": "PP", "clustered.expected": "PP",
    "clustered.least_df": "", "clustered.own": "nPP", "clustered.left": "nPP", "clustered.right": "nPP",
    "diagnostics.mirror": "M", "diagnostics.mirror_mean": "M", "diagnostics.deletion_shift": "MP",
    "regularity.ranks": "M", "regularity.least_curvature": "M", "regularity.most_curvature": "M",
    "regularity.gradient_noise": "M", "regularity.score_moment": "M", "regularity.curvature_moment": "M",
    "regularity.lipschitz_moment": "M", "goodness.llf": "", "goodness.deviance": "", "error.optimisation": "",
    "error.consensus": "", "clients.probabilities": "M3", "clients.spread": "PP", "clients.minority_shift": "P",
    "clients.noise": "M", "clients.noisy": "M", "clients.statistics": "M", "clients.ranks": "M", "clients.df": "M",
    "clients.p_values": "M",
}  # fmt: skip
_AXES |= {f"glance.{name.partition('.')[2]}": axes for name, axes in _AXES.items() if name.startswith("clients.")}
# Parts of inference that are arrays and numbers.
_PARTS: dict[str, type[Any]] = {
    "weighted_sums": WeightedSums,
    "effects": ClientEffects,
    "clustered": Clustered,
    "by_row": ByRow,
    "diagnostics": ClientDiagnostics,
    "regularity": Regularity,
    "goodness": Goodness,
    "error": NumericalError,
}


def save(record: RunRecord, path: str | PathLike[str]) -> None:
    """Write a record to `path` (a name without ``.npz`` gets it, here and in `load`)."""
    arrays = {name: getattr(record, name) for name in _RUN_ARRAYS} | _arrays("start", record.start)
    weights, changes = to_arrays(record.network)
    arrays |= weights
    if record.discrepancies is not None:
        arrays["discrepancies"] = record.discrepancies
    arrays |= {f"trace.{name}": values for name, values in record.trace_columns.items()}
    words = {name: getattr(record, name) for name in _RUN_WORDS} | {
        "format": FORMAT,
        "labels": [_plain(label) for label in record.labels],
        "schedule": changes,
    }
    if isinstance(record.names, EntryNames):
        words["names"] = {"arrays": record.names.blocks}
    if isinstance(record, FitRecord):
        record.at_estimate.parts()
    words["ledger"] = record.ledger.words()
    if isinstance(record, FitRecord):
        _add_fit(record, arrays, words)
    elif isinstance(record, ObjectiveRecord):
        arrays |= {f"objective.{name}": getattr(record, name) for name in ("totals", "gradients", "hessian", "noise")}
        arrays |= {f"history.{name}": values for name, values in record.history.items()}
    arrays["json"] = np.frombuffer(json.dumps(words, default=_plain).encode(), dtype=np.uint8)
    path = place_of(path, "path")
    write_arrays(path if path.suffix == ".npz" else path.with_name(path.name + ".npz"), arrays)


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
        # The default `cov_type` depends on how the fit was made, which is not saved; so its value is.
        "chosen_cov_type": fit.cov_type,
        "family": {part.name: getattr(fit.family, part.name) for part in fields(Family)},
        "clients": fit.clients.words(),
        "glance": None if glance is None else glance.words(),
        "penalty": None if fit.penalty is None else fit.penalty.strengths.tolist(),
    }
    try:
        lost = {"lost": fit.lost_formula}
        words["formula"] = lost if fit.spec is None or fit.formula is None else words_of(fit.formula, fit.spec)
    except TypeError as reason:
        # Results without their formula are better than none: predictions then say why they need the columns.
        words["formula"] = {"lost": str(reason)}


def load(path: str | PathLike[str]) -> Results | ObjectiveResults:
    """Read results written by their `save`.

    Everything is restored exactly but for the data. A formula's specification is kept where it has no functions of
    your own; predictions then take frames as before.

    Parameters
    ----------
    path : str or path
        The file; ``.npz`` is added where it has no ending and does not exist.

    Returns
    -------
    Results or ObjectiveResults
        Results of a GLM, or those of another objective.

    Raises
    ------
    StorageError
        If the file is damaged, incomplete or not one of results; the message has its name.

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
    path = place_of(path, "path")
    path = path if path.suffix == ".npz" or path.exists() else path.with_name(path.name + ".npz")
    refuse_absent(path, "path")
    try:
        return _restored(read_arrays(path))
    except StorageError as error:
        raise StorageError(f"{path} does not hold results written by Results.save: {error}") from error
    except (OSError, MemoryError):
        raise
    except Exception as error:
        # Words of a wrong type, in a file that was made by hand.
        raise StorageError(
            f"{path} does not hold results written by Results.save: {type(error).__name__} on reading it"
        ) from error


def _restored(arrays: dict[str, Any]) -> Results | ObjectiveResults:
    """Return the results of a file's arrays, checked."""
    try:
        words = json.loads(arrays.pop("json").tobytes())
        version = words["format"]
    except (KeyError, TypeError, ValueError):
        raise StorageError("it has no words") from None
    if version != FORMAT:
        raise StorageError(f"it has format {version}, this version reads format {FORMAT}")
    if isinstance(words.get("names"), dict):
        words["names"] = EntryNames(words["names"]["arrays"])
    labels = pd.Index(words["labels"], tupleize_cols=False)
    if not labels.is_unique or labels.hasnans or not len(labels):
        raise StorageError("its labels do not name each client once")
    _check_arrays(arrays, len(labels), len(words["names"]))
    run = {name: _part(arrays, name) for name in _RUN_ARRAYS} | {name: _part(words, name) for name in _RUN_WORDS}
    run |= {"labels": labels, "network": from_arrays(arrays, words["schedule"], labels)}
    run |= {"start": _record(Start, arrays, "start"), "trace_columns": _named(arrays, "trace")}
    run["discrepancies"] = arrays.get("discrepancies")
    run["ledger"] = Ledger.of_words(words.get("ledger", []))
    if "family" not in words:
        followed = _named(arrays, "history")
        return ObjectiveResults(ObjectiveRecord(**run, **_named(arrays, "objective"), history=followed))
    return Results(_loaded_fit(run, arrays, words))


def _part(parts: dict[str, Any], name: str) -> Any:
    if name not in parts:
        raise StorageError(f"it lacks {name!r}")
    return parts[name]


def _check_arrays(arrays: dict[str, Any], M: int, P: int) -> None:
    """Raise StorageError, which names the array, unless each has its axes and holds real numbers."""
    lengths = {"M": M, "P": P, "3": 3}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or not array.dtype.isnative:
            raise StorageError(f"its array {name!r} holds {array.dtype} instead of real numbers")
        # A network's arrays are checked as one.
        axes = "nM" if name.startswith("history.") else _AXES.get(name)
        if axes is None:
            continue
        wanted = tuple(lengths.get(axis, "any") for axis in axes.rstrip("!"))
        if len(wanted) != array.ndim or any(
            length not in ("any", n) for length, n in zip(wanted, array.shape, strict=True)
        ):
            raise StorageError(f"its array {name!r} has shape {array.shape}; wanted is {wanted}")
        if axes.endswith("!") and not np.isfinite(array).all():
            raise StorageError(f"its array {name!r} has NaN or infinite values")


def _loaded_fit(run: dict[str, Any], arrays: dict[str, Any], words: dict[str, Any]) -> FitRecord:
    """Return the record of a GLM."""
    # Sums of what the file has are taken as those of the fit were.
    members = Members(Local(batch_bounds(len(run["labels"]), int(_part(arrays, "sizes").sum()))))
    parts: dict[str, Any] = {name: _record(kind, arrays, name) for name, kind in _PARTS.items()}
    parts["clustered"] = replace(parts["clustered"], members=members)
    parts["clients"] = ClientRecord(**words["clients"], **_named(arrays, "clients"), members=members)
    parts["glance"] = parts["clients"]
    if words.get("glance") is not None:
        parts["glance"] = ClientRecord(**words["glance"], **_named(arrays, "glance"), members=members)
    written = _part(words, "formula")
    lost = written.get("lost")
    formula, spec = (None, None) if lost is not None else formula_of(written)
    return FitRecord(
        **run,
        members=members,
        **{name: _part(words, name) for name in _WORDS if name != "classes"},
        chosen_cov_type=_part(words, "chosen_cov_type"),
        classes=None if words["classes"] is None else tuple(words["classes"]),
        sizes=_part(arrays, "sizes"),
        metric=arrays.get("metric"),
        family=Family(**words["family"]),
        at_estimate=AtEstimate.of_parts(parts),
        penalty=None if words["penalty"] is None else Ridge(np.array(words["penalty"])),
        spec=spec,
        formula=formula,
        lost_formula=lost or "",
    )


def _arrays(name: str, record: Any) -> dict[str, Any]:
    """Return the fields of a record as arrays; the way to clients elsewhere is none."""
    names = [part.name for part in fields(record) if part.name != "members"]
    return {f"{name}.{key}": np.asarray(getattr(record, key)) for key in names}


def _record(kind: type[T], arrays: dict[str, Any], name: str) -> T:
    """Return the record whose `_arrays` these are: single numbers are numbers again."""
    values = _named(arrays, name)
    names = [part.name for part in fields(kind) if part.name != "members"]  # type: ignore[arg-type]
    return kind(**{key: value if value.ndim else value.item() for key in names for value in (_part(values, key),)})


def _named(arrays: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the arrays of one record, by the names of its fields."""
    return {key.removeprefix(f"{name}."): value for key, value in arrays.items() if key.startswith(f"{name}.")}


def _plain(value: Any) -> Any:
    """Return a value JSON can hold and give back as it was."""
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, (int, float, str)):
        raise ValueError(
            f"the label {value!r} ({type(value).__name__}) cannot be saved; use numbers or text for clients and classes"
        )
    return plain
