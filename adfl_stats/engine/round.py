"""One round: the exchange of messages, and each client's update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import sparse

from adfl_stats import _kernels
from adfl_stats._algebra import row_squares
from adfl_stats._client_sets import abnormal_mask
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.engine.attacks import Attack, Scene
from adfl_stats.engine.following import Following
from adfl_stats.engine.ledger import Counted, inside, observed, uncounted
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.reference import shortened
from adfl_stats.engine.rules import MEAN, Rule
from adfl_stats.engine.transport import Transport, entries_of
from adfl_stats.network.network import Network

__all__ = ["Descent", "Exchange", "Rounds", "Scheme", "Slope", "Update", "kernel_rounds", "rounds_of"]

# Each client's gradient times its factor, at its row of theta (M, P).
Slope = Callable[[Array], Array]
# One round: theta (M, P) and the step to the next theta.
Update = Callable[[Array, float], Array]
# Several rounds in place: theta (M, P), step, number, moves and their limit; returns how many were done.
Rounds = Callable[[Array, float, int, Array, float], int]
# Rounds after which places agree on the longest moves. Ours: agreeing costs several times the messages of a round.
AGREED_ROUNDS = 64


class Exchange:
    """The messages that every client of ours receives in a round, and their combination.

    Parameters
    ----------
    problem : Problem
        Clients and network.
    rule : Rule
        How a client combines what it receives.
    attack : Attack, optional
        Clients that send false messages, and which.

    Attributes
    ----------
    here : bool
        Whether all clients are ours.
    halo_rows : int
        How many clients elsewhere ours hear.
    indptr, indices, weights : ndarray
        The pools, in CSR form: row m combines rows ``indices[indptr[m]:indptr[m + 1]]`` of `heard`. For
        every rule but the mean the first of them is the client's own.

    Examples
    --------
    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> from adfl_stats.engine.problem import Problem
    >>> from adfl_stats.engine.round import Exchange
    >>> losses = ad.Losses(lambda m, theta, rng: theta - m, np.ones(4), np.zeros(1))
    >>> problem = Problem(losses, ad.networks.central_client(4))
    >>> sent = np.array([[0.0], [1.0], [2.0], [9.0]])
    >>> Exchange(problem).combine(sent).ravel().tolist()
    [4.0, 0.0, 0.0, 0.0]
    """

    def __init__(self, problem: Problem, rule: Rule = MEAN, attack: Attack | None = None) -> None:
        self.M, self.attack, self._rule, self._labels = problem.M, attack, rule, problem.all_labels
        self.members, self.here = problem.members, problem.members.numbers is None
        self._rng = np.random.default_rng(getattr(attack, "seed", 0))
        self.follow(problem.network if problem.schedule is None else problem.schedule.at(0).network)

    def follow(self, network: Network) -> None:
        """Take over the edges and weights of a network."""
        rule, attack = self._rule, self.attack
        W = network.W if rule.name == "mean" else _with_own_first(network.W)
        self.listened: Callable[[Array], Array] | None = None
        self.halo_rows = 0
        senders = np.arange(W.shape[0])
        if attack is not None:
            self._honest = ~abnormal_mask(attack.clients, self._labels, "clients")
            self._scene_of_all(W)
        if (own := self.members.numbers) is not None:
            halo = self.members.transport.halo(W.indptr, W.indices)
            self.listened, self.halo_rows = self.members.transport.listen(halo), len(halo)
            # Rows of ours come first, then those of the halo.
            senders[np.concatenate([own, halo])] = np.arange(len(own) + len(halo))
            W = _rows(W, own)
        self.indptr, indices = (np.ascontiguousarray(part, dtype=np.int64) for part in (W.indptr, W.indices))
        self.weights = np.ascontiguousarray(W.data, dtype=np.float64)
        bad = None if rule.bad is None else rule.bad[indices].astype(np.uint8)
        replaced = indices[:0] if attack is None else self._replaced(W.indptr, indices, self.members.ours(self._honest))
        indices = senders[indices]
        # An attacker may send each receiver another message: each false message has a row, after those of the clients.
        indices[replaced] = self.M + self.halo_rows + np.arange(len(replaced))
        self.indices = indices
        self.combiner = _kernels.Combiner(self.indptr, indices, self.weights, rule.code, rule.count, rule.value, bad)

    def heard(self, sent: Array) -> Array:
        """Return the rows that `indices` refers to: what ours send (M, P), then the halo's, or the false messages."""
        if self.listened is None and self.attack is None:
            return sent
        heard = [sent] if self.listened is None else [sent, self.listened(sent)]
        if self.attack is not None:
            # Attackers see all messages, in every place: what they see is no message of the protocol.
            everything = uncounted(self.members.transport).gather(sent)
            scene = Scene(everything, self._sources, self._victims, self._W, self._honest, self._rng)
            heard.append(self.attack.lies(scene)[self._hits])
        return np.concatenate(heard)

    def _replaced(self, indptr: Ints, indices: Ints, receivers: Mask) -> Ints:
        """Return the entries of pools (CSR) that are messages of attackers to receivers who are honest."""
        return np.flatnonzero(~self._honest[indices] & np.repeat(receivers, np.diff(indptr)))

    def _scene_of_all(self, W: sparse.csr_array) -> None:
        """Keep who attacks whom in the whole network, and which of these messages are for clients of ours."""
        replaced = self._replaced(W.indptr, W.indices, self._honest)
        self._W, self._sources = W, W.indices[replaced]
        self._victims = np.searchsorted(W.indptr, replaced, side="right") - 1
        everybody = np.zeros(W.shape[0], dtype=bool)
        everybody[slice(None) if self.members.numbers is None else self.members.numbers] = True
        self._hits = everybody[self._victims]

    def tell(self, rounds: int, numbers: int) -> None:
        """Count rounds in which a client sends its neighbours so many numbers."""
        if isinstance(self.members.transport, Counted):
            self.members.transport.said(rounds, numbers)

    def combine(self, sent: Array) -> Array:
        """Return each client's combination of the messages `sent` (M, P)."""
        self.tell(1, sent.shape[1])
        heard = self.heard(sent)
        if sent.dtype == np.float32 and self._rule.name == "mean":
            pools = self.weights.astype(np.float32), self.indices, self.indptr
            return np.asarray(sparse.csr_array(pools, shape=(self.M, len(heard))) @ heard)
        out = np.empty((self.M, 1, sent.shape[1]))
        _kernels.combine(self.combiner, np.ascontiguousarray(heard, dtype=np.float64)[:, None, :], out)
        return out[:, 0].astype(sent.dtype, copy=False)


@dataclass(frozen=True)
class Descent:
    """What a client does between two exchanges.

    Attributes
    ----------
    clip : float
        The greatest length of a gradient; longer ones are shortened to it.
    local_steps : int
        The number of gradient steps.

    Examples
    --------
    >>> from adfl_stats.engine.round import Descent, Scheme
    >>> Scheme(descent=Descent(clip=1.0, local_steps=5)).weighted
    False
    """

    clip: float = np.inf
    local_steps: int = 1


PAPER_DESCENT = Descent()


@dataclass(frozen=True, eq=False)
class Scheme:
    """How a method does a round, and the schedule of its run.

    Attributes
    ----------
    rule : Rule
        How a client combines the messages that it receives.
    update : callable or None
        Builds the round of a method that does something else than combine and descend, from an
        `Exchange` and a `Slope`; called anew for each run, so that it may keep a state.
    schedule : {"cut", "phases", "hold", "still"}
        What a run without `rounds` does: cut the step until the numerical error is small; a fixed number
        of rounds in three phases, for rules that solve no equation; hold the step until the numerical
        error is small; hold it until the estimates no longer change.
    caution : float
        The share of the safe step at which the method is stable.
    descent : Descent
        A client's gradient steps: one, of the gradient as it is, in the paper.

    Examples
    --------
    >>> from adfl_stats.engine.round import Scheme
    >>> from adfl_stats.engine.rules import Rule
    >>> Scheme().weighted, Scheme(Rule("median"), schedule="phases").weighted
    (True, False)
    """

    rule: Rule = MEAN
    update: Callable[[Exchange, Slope], Update] | None = None
    schedule: str = "cut"
    caution: float = 1.0
    descent: Descent = PAPER_DESCENT

    @property
    def weighted(self) -> bool:
        """Whether a round is that of equation (4.1), whose limit can be solved for."""
        return self.update is None and self.rule.name == "mean" and self.descent == PAPER_DESCENT


def rounds_of(
    scheme: Scheme, problem: Problem, steps: ClientSteps, attack: Attack | None, metric: Array | None, first: int = 0
) -> Rounds:
    """Return a method's rounds, which follow a schedule of networks from round `first`."""
    exchange, factors = Exchange(problem, scheme.rule, attack), steps.factors.copy()
    rounds = _rounds(scheme, problem, exchange, factors, metric)
    if problem.schedule is None:
        return rounds
    return Following(problem.schedule, exchange, factors, rounds, first)


def _rounds(scheme: Scheme, problem: Problem, exchange: Exchange, factors: Array, metric: Array | None) -> Rounds:
    """Return the kernel's own loop where it has one, else one in Python; the exchange and the factors may change."""
    descent = scheme.descent
    if problem.has_curvature:
        # How it is computed is decided before the first round.
        with inside(problem.transport, "start"):
            loss = problem.glm.loss(metric)
        if scheme.update is None and exchange.attack is None:
            return partial(_single_run, exchange, loss, factors, problem.threads, descent)
    gradients = _gradients(problem, metric)

    def slope(theta: Array) -> Array:
        own = factors[:, None].astype(theta.dtype, copy=False)
        return np.asarray(own * shortened(gradients(theta), descent.clip))

    build = scheme.update or partial(_descend, descent.local_steps)
    return partial(_python_rounds, build(exchange, slope), problem.transport)


def _gradients(problem: Problem, metric: Array | None) -> Callable[[Array], Array]:
    """Return each client's gradient at its row of theta (M, P), with `metric` (p, p) applied to it if given."""
    if metric is None:
        return problem.gradients
    loss = problem.glm.loss(metric)

    def gradients(theta: Array) -> Array:
        out = np.empty((problem.M, 1, problem.P))
        _kernels.gradient(loss, np.ascontiguousarray(theta)[:, None, :], out, problem.threads)
        return out[:, 0]

    return gradients


def _descend(local_steps: int, exchange: Exchange, slope: Slope) -> Update:
    """Combine, then gradient steps: the round of the kernel's loop."""

    def update(theta: Array, step: float) -> Array:
        at = exchange.combine(theta)
        for _ in range(local_steps):
            move = slope(at)
            move *= step
            at = np.subtract(at, move, out=move)
        return at

    return update


def kernel_rounds(
    exchange: Exchange,
    loss: _kernels.Loss,
    theta: Array,
    steps: Array,
    moved: Array,
    limits: Array,
    threads: int,
    descent: Descent = PAPER_DESCENT,
) -> int:
    """Do the kernel's rounds in place for the clients that are ours; to the bit those of all clients in one place.

    Parameters
    ----------
    theta : ndarray (M, R, P)
        The state of R runs.
    steps : ndarray (M, R)
        The clients' steps.
    moved : ndarray (rounds, R)
        Is filled with the longest move of a round.
    limits : ndarray (R,)
        A round with a longer move, or one that is not finite, is the last.
    descent : Descent
        What a client does between two exchanges.

    Returns
    -------
    int
        How many rounds were done.
    """
    rounds, how = len(moved), (threads, descent.clip, descent.local_steps)
    if exchange.here:
        done = _kernels.rounds(exchange.combiner, loss, theta, steps, rounds, moved, limits, *how)
    else:
        done = _halo_rounds(exchange, loss, theta, steps, moved, limits, how)
    exchange.tell(done, theta[0].size)
    if isinstance(exchange.members.transport, Counted):
        exchange.members.transport.looked(done, theta.shape[1])
    return done


def _halo_rounds(
    exchange: Exchange,
    loss: _kernels.Loss,
    theta: Array,
    steps: Array,
    moved: Array,
    limits: Array,
    how: tuple[int, float, int],
) -> int:
    """Do the rounds of `kernel_rounds` where some of the neighbours are elsewhere.

    Ranks agree on the longest moves of several rounds at once; where one of these should have been the last, the
    rounds up to it are done again.
    """
    transport, listened = uncounted(exchange.members.transport), exchange.listened
    assert listened is not None
    M, done = len(theta), 0
    fine: Mask = np.ones(0, dtype=bool)
    heard = np.concatenate([theta, np.zeros((exchange.halo_rows, *theta.shape[1:]))])
    state = _kernels.State(exchange.combiner, loss, heard, steps, *how)
    while done < len(moved) and fine.all():
        some = moved[done : done + AGREED_ROUNDS]
        before = np.asarray(state) if len(some) == 1 else np.array(state)
        _rounds_together(state, listened, some, M)
        some[:] = transport.largest(some[None])
        fine = np.all(np.isfinite(some) & (some <= limits), axis=1)
        wanted = len(some) if fine.all() else 1 + int(np.argmin(fine))
        if wanted < len(some):
            np.asarray(state)[:] = before
            _rounds_together(state, listened, np.empty_like(some[:wanted]), M)
        done += wanted
    state.write(theta)
    return done


def _rounds_together(state: _kernels.State, listened: Callable[[Array], Array], moved: Array, M: int) -> None:
    """Do rounds of M clients that hear others elsewhere; their own longest moves are written to `moved`."""
    for own in moved:
        estimates = np.asarray(state)
        estimates[M:] = listened(estimates[:M])
        state.round(own)


def _single_run(
    exchange: Exchange,
    loss: _kernels.Loss,
    factors: Array,
    threads: int,
    descent: Descent,
    theta: Array,
    step: float,
    rounds: int,
    moved: Array,
    limit: float,
) -> int:
    steps, limits = np.ascontiguousarray((step * factors)[:, None]), np.array([limit])
    return kernel_rounds(exchange, loss, theta[:, None, :], steps, moved[:rounds, None], limits, threads, descent)


def _python_rounds(
    update: Update, transport: Transport, theta: Array, step: float, rounds: int, moved: Array, limit: float
) -> int:
    for t in range(rounds):
        # A run that diverges ends with a move that is not finite, which the caller checks.
        with np.errstate(over="ignore", invalid="ignore"):
            after = update(theta, step)
            with observed(transport):
                moved[t] = transport.largest(np.sqrt(row_squares(after, theta)))
        theta[:] = after
        # A copy of the state less during the next round.
        del after
        if not (np.isfinite(moved[t]) and moved[t] <= limit):
            return t + 1
    return rounds


def _rows(W: sparse.csr_array, own: Ints) -> sparse.csr_array:
    """Return some rows of W, each with its entries in the order that they have."""
    indptr = np.concatenate([[0], np.cumsum(np.diff(W.indptr)[own])])
    at = entries_of(own, W.indptr)
    return sparse.csr_array((W.data[at], W.indices[at], indptr), shape=(len(own), W.shape[1]))


def _with_own_first(W: sparse.csr_array) -> sparse.csr_array:
    """Return W with each client's own entry the first of its row.

    A client to which W gives no weight of its own joins its d neighbours as one of d + 1: w_mk becomes
    d w_mk / (d + 1), and w_mm is 1 / (d + 1).
    """
    M = W.shape[0]
    own = W.diagonal()
    degree = np.diff(W.indptr).astype(float)
    share = np.where(own > 0, 1.0, degree / (degree + 1.0))
    receiver = np.repeat(np.arange(M), np.diff(W.indptr))
    others = receiver != W.indices
    rows = np.concatenate([np.arange(M), receiver[others]])
    columns = np.concatenate([np.arange(M), W.indices[others]])
    values = np.concatenate([np.where(own > 0, own, 1.0 / (degree + 1.0)), (share[receiver] * W.data)[others]])
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=M))])
    return sparse.csr_array((values[order], columns[order], indptr), shape=(M, M))
