"""Options of weighted DFL that go beyond the paper: clipped gradients, several local steps, a robust rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from adfl_stats._arguments import in_interval, whole_number
from adfl_stats._types import Array
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.round import Descent, Scheme
from adfl_stats.engine.rules import MEAN
from adfl_stats.methods._base import Combining

__all__ = ["check_descent", "said_of", "scheme_of"]


def check_descent(clip: float | None, local_steps: int) -> None:
    """Raise unless these are a length to clip at, or None, and a number of steps."""
    if clip is not None:
        in_interval(clip, "clip", 0.0, np.inf, open_low=True)
    whole_number(local_steps, "local_steps", 1)


def scheme_of(problem: Problem, clip: float | None, local_steps: int, rule: Combining | None = None) -> Scheme:
    """Return the rounds of weighted DFL with these options; without any, those of equation (4.1)."""
    descent = Descent(np.inf if clip is None else float(clip), local_steps)
    combination = MEAN if rule is None else rule.combination(problem)
    return Scheme(combination, schedule="cut" if rule is None else "phases", descent=descent)


def said_of(problem: Problem, theta: Array, steps: ClientSteps, scheme: Scheme) -> dict[str, Any]:
    """Return the options' entries in `details`: clip, how many clients it shortens at the end, and local steps."""
    descent, said = scheme.descent, dict[str, Any]()
    if np.isfinite(descent.clip):
        long = np.linalg.norm(problem.gradients(theta), axis=1) > descent.clip
        said |= {"clip": descent.clip, "clipped": problem.members.count(long & (steps.weights > 0.0))}
    return said | ({"local_steps": descent.local_steps} if descent.local_steps > 1 else {})
