"""Corruptions of responses whose effect on a client's score is known.

At a common parameter with means mu_i the score of a client is sum_i h_i x_i (y_i - mu_i), with h_i = 1 for canonical
links. Its expectation is zero for a client that follows the model. Under a corruption of the responses of known form it
is another known vector, so that a minority with such responses has no parameter of its own to estimate:

    shuffled  responses in another order: sum_i h_i x_i (m - mu_i), with m the client's mean of mu_i;
    mirrored  responses reflected about their mean, or in reverse order: twice that;
    flipped   y -> 1 - y (labels) or y -> -y (Gaussian): sum_i h_i x_i (1 - 2 mu_i) or -2 sum_i h_i x_i mu_i.

The paper's bit flipping is the last of these; the others are ours.
"""

from __future__ import annotations

import numpy as np

from adfl_stats._types import Array
from adfl_stats.data.batches import Batch
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.client_sums import own_predictor, scaled
from adfl_stats.losses.families import Family

__all__ = ["FORMS", "altered_scores", "mechanisms", "moved_scores"]


# How the expected score changes with the common parameter: (a, b) for a times the change of the client's mean response
# plus b times that of all its means.
FORMS = {"shuffled": (1.0, 0.0), "mirrored": (2.0, -1.0), "flipped": (0.0, -1.0)}


def mechanisms(family: Family) -> tuple[str, ...]:
    """Return the names of the corruptions that are defined for a family."""
    if family.name == "multinomial":
        return ()
    if family.name == "binomial":
        return "shuffled", "flipped"
    return ("shuffled", "mirrored", "flipped") if family.name == "gaussian" else ("shuffled", "mirrored")


def altered_scores(data: ClientData, family: Family, theta: Array, pieces: list[Batch]) -> Array:
    """Return the expected scores of some clients under each corruption, and two sums over their rows (C, K + 2, P).

    The last two are the sums of h_i x_i and of mu_i' x_i, over the root of the client's total weight: the score of a
    change of all responses, and the derivative of their mean.
    """
    at, names, P = pieces[0].clients, mechanisms(family), len(theta)
    total = data.totals[at]
    sums, mean = np.zeros((len(total), 3, P)), np.zeros(len(total))
    if not names:
        return sums[:, :0]
    for piece in pieces:
        X, weight = data.X[piece.rows], data.weights_of(piece.rows)
        eta = own_predictor(data, family, theta[None], piece)
        mu = family.mean(eta)
        # The residual is h (mu - y), and the information h mu'.
        h = family.residual(eta, mu - 1.0)
        slope = family.information(eta) / h
        sums += piece.cross(scaled(np.column_stack([h, h * mu, slope]), weight), X)
        mean += piece.sums(weight * mu)
    ones, means, slopes = sums.transpose(1, 0, 2)
    shuffled = (mean / total)[:, None] * ones - means
    scores = {
        "shuffled": shuffled,
        "mirrored": 2.0 * shuffled,
        "flipped": (ones if family.name == "binomial" else 0.0) - 2.0 * means,
    }
    root = np.sqrt(total)[:, None]
    return np.stack([*(scores[name] for name in names), ones / root, slopes / root], axis=1)


def moved_scores(names: tuple[str, ...], along: Array, altered: Array) -> Array:
    """Return `altered_scores` (M, K + 2, P) of a Gaussian model, whitened, after a step of theta.

    Parameters
    ----------
    names : tuple of str
        The corruptions.
    along : ndarray (M, P)
        The step of theta times the clients' factors.
    altered : ndarray (M, K + 2, P)
        Before the step.
    """
    if not names:
        return altered
    ones, slopes = altered[:, -2], altered[:, -1]
    mean = ones * np.einsum("mp,mp->m", slopes, along)[:, None]
    # The responses move with theta, and the point at which the score is taken too.
    changes = [a * mean + (b - 1.0) * along for a, b in (FORMS[name] for name in names)]
    return altered + np.stack([*changes, np.zeros_like(ones), np.zeros_like(ones)], axis=1)
