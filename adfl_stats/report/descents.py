"""Notes of a summary on clipped gradients, local steps and privacy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["descent_notes"]


def descent_notes(details: Mapping[str, Any]) -> list[str]:
    """Return notes on the options of a fit's rounds, from what it settled on."""
    notes = []
    if "clip" in details:
        notes.append(
            f"Gradients longer than {details['clip']:.3g} were shortened to that length; at the estimate, those of "
            f"{details['clipped']} clients, which therefore count less."
        )
    if "local_steps" in details:
        notes.append(
            f"Clients did {details['local_steps']} gradient steps between exchanges, which moves the limit where "
            "clients differ; DecentralizedGLM.local_updates says by how much."
        )
    if "epsilon" in details and not details["noise"]:
        notes.append(
            f"Gradients of rows longer than {details['row_clip']:.3g} were shortened to that length. Without noise "
            "there is no differential privacy."
        )
    elif "epsilon" in details:
        notes.append(
            f"Differential privacy: epsilon = {details['epsilon']:.3g} at delta = {details['delta']:.1g} for a row of "
            f"a client, after {details['releases']} releases of its gradient, rows clipped at "
            f"{details['row_clip']:.3g}, with noise of {details['noise']:.3g} times the largest effect of a row. "
            "That is the cost of this fit, if its seed is secret and no other fit has it. Estimates and weights are "
            "protected; standard errors, which include the noise, and the gradients of clients are computed from the "
            "rows, and are not."
        )
    return notes
