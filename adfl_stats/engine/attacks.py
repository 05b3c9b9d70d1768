"""Attacks on messages: clients that send false estimates to their neighbours, for stress tests.

The theory of aDFL covers corrupted *data* of clients that follow the protocol. These attacks break the
protocol and are not covered: no method here, aDFL included, has a guarantee against them. An attack is
given to a fit, ``model.fit(method, step=, rounds=, attack=ad.attacks.SignFlip([3, 7]))``. What the
attacking clients send to the others is then replaced before the others combine it; among themselves they
send true messages, and they continue to iterate. Where a method sends more than its estimates (a tracked
gradient), each kind of message is attacked separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from scipy import sparse, stats

from adfl_stats._arguments import in_interval, whole_number
from adfl_stats._types import Array, ClientSet, Ints, Mask

__all__ = ["ALIE", "IPM", "Attack", "Dissensus", "Gaussian", "Scene", "SignFlip"]


@dataclass(frozen=True, eq=False)
class Scene:
    """What the attackers know: they collude and see all messages.

    Attributes
    ----------
    sent : ndarray (M, P)
        The true messages.
    sources, victims : ndarray (E,)
        Sender and receiver of each message that is replaced.
    weights : csr_array (M, M)
        W: how each client weights the messages that it receives.
    honest : ndarray (M,)
        A mask of the clients that do not attack.
    rng : numpy.random.Generator
        For random attacks.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> W = sparse.csr_array(np.full((3, 3), 1 / 3))
    >>> honest, rng = np.array([True, True, False]), np.random.default_rng(1)
    >>> scene = Scene(np.array([[1.0], [3.0], [8.0]]), np.array([2, 2]), np.array([0, 1]), W, honest, rng)
    >>> scene.mean[scene.victims].ravel().tolist(), SignFlip([2]).lies(scene).ravel().tolist()
    ([2.0, 2.0], [-8.0, -8.0])
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
    """An attack on messages: what a user's own attack must have; a random one has a `seed` as well.

    Attributes
    ----------
    clients : label, or list, set, array or Series of labels, indices or booleans
        The attackers.

    Examples
    --------
    >>> class Zero:
    ...     clients = [3, 7]
    ...
    ...     def lies(self, scene):
    ...         return 0.0 * scene.sent[scene.sources]
    >>> isinstance(Zero(), Attack)
    True
    """

    clients: ClientSet

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages.

        Parameters
        ----------
        scene : Scene
            What the attackers know.

        Returns
        -------
        ndarray (E, P)
            One message for each pair of sender and receiver.
        """


@dataclass(frozen=True, eq=False)
class SignFlip(Attack):
    """Send -scale times the own estimate (He, Karimireddy & Jaggi 2022).

    Parameters
    ----------
    clients : label, or list, set, array or Series of labels, indices or booleans
        The attackers.
    scale : float
        The factor.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> attack = ad.attacks.SignFlip([3, 7])
    >>> dfl, bridge = (model.fit(one, step=0.1, rounds=100, attack=attack) for one in (ad.DFL(), ad.Bridge("median")))
    >>> bool(abs(bridge.params - sim.theta0).max() < abs(dfl.params - sim.theta0).max())
    True
    """

    clients: ClientSet
    scale: float = 1.0

    def __post_init__(self) -> None:
        in_interval(self.scale, "scale", 0.0, np.inf, open_low=True)

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages."""
        return -self.scale * scene.sent[scene.sources]


@dataclass(frozen=True, eq=False)
class Gaussian(Attack):
    """Send the mean of the honest clients around the victim plus Gaussian noise.

    Parameters
    ----------
    clients : label, or list, set, array or Series of labels, indices or booleans
        The attackers.
    sd : float
        Standard deviation of each coordinate; 30 in the experiments of Wu, Chen & Ling (2023).
    seed : int
        Of the noise.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> attack = ad.attacks.Gaussian([3, 7])
    >>> dfl, bridge = (model.fit(one, step=0.1, rounds=100, attack=attack) for one in (ad.DFL(), ad.Bridge("median")))
    >>> bool(abs(bridge.params - sim.theta0).max() < abs(dfl.params - sim.theta0).max())
    True
    """

    clients: ClientSet
    sd: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        in_interval(self.sd, "sd", 0.0, np.inf, open_low=True)
        whole_number(self.seed, "seed", 0, None)

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages."""
        around = scene.mean[scene.victims]
        return around + self.sd * scene.rng.standard_normal(around.shape)


@dataclass(frozen=True, eq=False)
class ALIE(Attack):
    """A little is enough (Baruch, Baruch & Goldberg 2019): mean minus z standard deviations.

    Both are those of the honest clients around the victim, so that the message lies within their spread.

    Parameters
    ----------
    clients : label, or list, set, array or Series of labels, indices or booleans
        The attackers.
    z : float or None
        None takes the quantile Phi^-1((n - m - s) / (n - m)) of the original, with n clients of which m
        attack and s = floor(n / 2 + 1) - m, at least zero.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> attack = ad.attacks.ALIE([3, 7], z=3.0)
    >>> dfl, bridge = (model.fit(one, step=0.1, rounds=100, attack=attack) for one in (ad.DFL(), ad.Bridge("median")))
    >>> bool(abs(bridge.params - sim.theta0).max() < abs(dfl.params - sim.theta0).max())
    True
    """

    clients: ClientSet
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
class IPM(Attack):
    """Inner product manipulation (Xie, Koyejo & Gupta 2020): minus epsilon times the honest mean.

    Parameters
    ----------
    clients : label, or list, set, array or Series of labels, indices or booleans
        The attackers.
    epsilon : float
        The factor; .1 in the original.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> attack = ad.attacks.IPM([3, 7])
    >>> dfl, bridge = (model.fit(one, step=0.1, rounds=100, attack=attack) for one in (ad.DFL(), ad.Bridge("median")))
    >>> bool(abs(bridge.params - sim.theta0).max() < abs(dfl.params - sim.theta0).max())
    True
    """

    clients: ClientSet
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        in_interval(self.epsilon, "epsilon", 0.0, np.inf, open_low=True)

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages."""
        return -self.epsilon * scene.mean[scene.victims]


@dataclass(frozen=True, eq=False)
class Dissensus(Attack):
    """Keep each victim away from its honest neighbours (He, Karimireddy & Jaggi 2022).

    The victim m receives x_m - epsilon sum_k w_mk (x_k - x_m) / sum_b w_mb, with the first sum over its
    honest neighbours and the second over the attackers: at epsilon = 1 a weighted mean stays at x_m.

    Parameters
    ----------
    clients : label, or list, set, array or Series of labels, indices or booleans
        The attackers.
    epsilon : float
        The strength.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> attacked = model.fit(ad.DFL(), step=0.1, rounds=100, attack=ad.attacks.Dissensus([3, 7]))
    >>> plain = model.fit(ad.DFL(), step=0.1, rounds=100)
    >>> bool((attacked.client_params.std() > 5 * plain.client_params.std()).all())
    True
    """

    clients: ClientSet
    epsilon: float = 1.0

    def __post_init__(self) -> None:
        in_interval(self.epsilon, "epsilon", 0.0, np.inf, open_low=True)

    def lies(self, scene: Scene) -> Array:
        """Return the replaced messages."""
        honest = sparse.csr_array(scene.weights @ sparse.diags_array(scene.honest.astype(float)))
        pull = honest @ scene.sent - honest.sum(axis=1)[:, None] * scene.sent
        attacking = (scene.weights.sum(axis=1) - honest.sum(axis=1))[scene.victims]
        return scene.sent[scene.victims] - self.epsilon * pull[scene.victims] / attacking[:, None]
