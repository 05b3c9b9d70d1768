"""Clients that lie to their neighbours: attacks on messages, for stress tests.

The theory of aDFL covers corrupted *data* of clients that follow the protocol. These attacks break the
protocol and lie outside it: no method here, aDFL included, promises anything against them. An attack is
given to a fit, ``model.fit(method, step=, rounds=, attack=ad.attacks.SignFlip([3, 7]))``. What the
attacking clients send to the others is then replaced before the others combine it; among themselves they
tell the truth, and they go on iterating like everybody. Where a method sends more than its estimates (a
tracked gradient), each kind of message is attacked by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy import sparse, stats

from adfl_stats._arguments import in_interval, whole_number
from adfl_stats._types import Array, Ints, Mask

__all__ = ["ALIE", "IPM", "Attack", "Dissensus", "Gaussian", "Scene", "SignFlip"]


@dataclass(frozen=True, eq=False)
class Scene:
    """What the attackers know: they work together and see what everybody sends.

    Attributes
    ----------
    sent : ndarray (M, P)
        What every client would send honestly.
    sources, victims : ndarray (E,)
        Sender and receiver of each message that is replaced.
    weights : csr_array (M, M)
        How each client weights what it hears.
    honest : ndarray (M,)
        A mask of the clients that do not lie.
    rng : numpy.random.Generator
        For attacks that draw.
    """

    sent: Array
    sources: Ints
    victims: Ints
    weights: sparse.csr_array
    honest: Mask
    rng: np.random.Generator

    @cached_property
    def _circle(self) -> sparse.csr_array:
        """Averages over each client itself and the honest ones that it hears."""
        known = sparse.csr_array(self.weights + sparse.eye_array(self.sent.shape[0])) @ sparse.diags_array(
            self.honest.astype(float)
        )
        known = sparse.csr_array(known > 0).astype(float)
        return sparse.csr_array(sparse.diags_array(1.0 / np.maximum(known.sum(axis=1), 1.0)) @ known)

    @cached_property
    def mean(self) -> Array:
        """Return, for each client, the mean of what it and the honest ones it hears would send (M, P)."""
        return np.asarray(self._circle @ self.sent)

    @cached_property
    def deviation(self) -> Array:
        """Return, for each client, the standard deviation about `mean`, by coordinate (M, P)."""
        # About a common centre, so that large estimates that differ little do not cancel.
        centred = self.sent - self.sent[self.honest].mean(axis=0)
        square = self._circle @ centred**2 - (self._circle @ centred) ** 2
        return np.sqrt(np.maximum(square, 0.0))


@runtime_checkable
class Attack(Protocol):
    """A way to lie; one that draws has a `seed` besides."""

    @property
    def clients(self) -> Any:
        """Who lies: labels, indices or a mask."""

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages (E, P)."""


@dataclass(frozen=True, eq=False)
class SignFlip:
    """Send -scale times the own estimate (He, Karimireddy & Jaggi 2022).

    Parameters
    ----------
    clients : labels, indices or mask
        Who lies.
    scale : float
        How much the message is stretched.
    """

    clients: Any
    scale: float = 1.0

    def __post_init__(self) -> None:
        in_interval(self.scale, "scale", 0.0, np.inf, open_low=True)

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages."""
        return -self.scale * scene.sent[scene.sources]


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Send the mean of the honest clients around the victim plus Gaussian noise.

    Parameters
    ----------
    clients : labels, indices or mask
        Who lies.
    sd : float
        Standard deviation of each coordinate; 30 in the experiments of Wu, Chen & Ling (2023).
    seed : int
        Of the noise.
    """

    clients: Any
    sd: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        in_interval(self.sd, "sd", 0.0, np.inf, open_low=True)
        whole_number(self.seed, "seed", 0)

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages."""
        around = scene.mean[scene.victims]
        return around + self.sd * scene.rng.standard_normal(around.shape)


@dataclass(frozen=True, eq=False)
class ALIE:
    """A little is enough (Baruch, Baruch & Goldberg 2019): mean minus z standard deviations.

    Both are those of the honest clients around the victim, so that the lie hides in their spread.

    Parameters
    ----------
    clients : labels, indices or mask
        Who lies.
    z : float or None
        None takes the quantile Phi^-1((n - m - s) / (n - m)) of the original, with n clients of which m
        lie and s = floor(n / 2 + 1) - m, at least zero.
    """

    clients: Any
    z: float | None = None

    def __post_init__(self) -> None:
        if self.z is not None:
            in_interval(self.z, "z", 0.0, np.inf)

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages."""
        n, honest = len(scene.honest), int(scene.honest.sum())
        supporters = n // 2 + 1 - (n - honest)
        usual = max(float(stats.norm.ppf((honest - max(supporters, 1)) / honest)), 0.0)
        z = usual if self.z is None else self.z
        return scene.mean[scene.victims] - z * scene.deviation[scene.victims]


@dataclass(frozen=True, eq=False)
class IPM:
    """Inner product manipulation (Xie, Koyejo & Gupta 2020): minus epsilon times the honest mean.

    Parameters
    ----------
    clients : labels, indices or mask
        Who lies.
    epsilon : float
        The factor; .1 in the original.
    """

    clients: Any
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        in_interval(self.epsilon, "epsilon", 0.0, np.inf, open_low=True)

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages."""
        return -self.epsilon * scene.mean[scene.victims]


@dataclass(frozen=True, eq=False)
class Dissensus:
    """Keep each victim away from its honest neighbours (He, Karimireddy & Jaggi 2022).

    The victim m receives x_m - epsilon sum_k w_mk (x_k - x_m) / sum_b w_mb, with the first sum over its
    honest neighbours and the second over the lying ones: at epsilon = 1 a weighted mean stays at x_m.

    Parameters
    ----------
    clients : labels, indices or mask
        Who lies.
    epsilon : float
        How strongly.
    """

    clients: Any
    epsilon: float = 1.0

    def __post_init__(self) -> None:
        in_interval(self.epsilon, "epsilon", 0.0, np.inf, open_low=True)

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages."""
        honest = sparse.csr_array(scene.weights @ sparse.diags_array(scene.honest.astype(float)))
        pull = honest @ scene.sent - honest.sum(axis=1)[:, None] * scene.sent
        lying = (scene.weights.sum(axis=1) - honest.sum(axis=1))[scene.victims]
        return scene.sent[scene.victims] - self.epsilon * pull[scene.victims] / lying[:, None]
