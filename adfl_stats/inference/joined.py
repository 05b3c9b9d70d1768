"""Records of clients in several places, joined into one that every place holds, and of it what is ours."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from adfl_stats.engine.transport import Local, Members
from adfl_stats.inference.at_estimate import AtEstimate
from adfl_stats.inference.record import FitRecord

__all__ = ["own_record", "whole_record"]

# Fields of the parts of inference that have a row a client, or a row for each of some clients.
BY_CLIENT: dict[str, tuple[str, ...]] = {
    "weighted_sums": ("gradients",),
    "clients": ("probabilities", "noise", "noisy", "statistics", "ranks", "df", "p_values"),
    "glance": ("probabilities", "noise", "noisy", "statistics", "ranks", "df", "p_values"),
    "effects": ("deviations", "errors", "effects", "effect_errors"),
    "clustered": ("cr2", "cr3", "own", "left", "right"),
    "diagnostics": ("mirror", "mirror_mean", "deletion_shift"),
    "regularity": (
        "ranks", "least_curvature", "most_curvature", "gradient_noise", "score_moment", "curvature_moment",
        "lipschitz_moment", "shares",
    ),
}  # fmt: skip
# And of the record itself.
ROWS = ("theta", "weights", "total_weights", "set_aside", "sizes")


def whole_record(record: FitRecord, place: Local) -> FitRecord:
    """Return the record of all clients, with all of inference computed; every place calls this together.

    `place` has all clients, in the batches of the fit.
    """
    members, here = record.members, Members(place)
    if members.transport.here:
        return record
    parts = record.at_estimate.parts()
    whole = {name: _whole(part, BY_CLIENT.get(name, ()), members, here) for name, part in parts.items()}
    if parts["glance"] is parts["clients"]:
        whole["glance"] = whole["clients"]
    names = ROWS if record.discrepancies is None else (*ROWS, "discrepancies")
    rows: dict[str, Any] = {name: members.gather(getattr(record, name)) for name in names}
    return replace(
        record,
        **rows,
        labels=record.all_labels,
        members=here,
        at_estimate=AtEstimate.of_parts(whole),
    )


def own_record(record: FitRecord, members: Members) -> FitRecord:
    """Return the record of all clients with the rows of those that are ours; the parts of inference stay whole."""
    if members.numbers is None:
        return record
    rows: dict[str, Any] = {name: getattr(record, name)[members.numbers] for name in ROWS}
    return replace(record, **rows, labels=record.labels[members.numbers], members=members)


def _whole(part: Any, names: tuple[str, ...], members: Members, here: Members) -> Any:
    """Return a part of inference with the rows of all clients."""
    gathered: dict[str, Any] = {name: members.gather(getattr(part, name)) for name in names}
    if any(field.name == "members" for field in fields(part)):
        gathered["members"] = here
    return replace(part, **gathered) if gathered else part
