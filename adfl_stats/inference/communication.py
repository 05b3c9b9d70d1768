"""Communication in a fit: how many numbers a client sends, in which phase, and to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from adfl_stats._files import size_in_words
from adfl_stats._text import framed
from adfl_stats.data.whole import DATA, HASHES, ROW, SUM
from adfl_stats.engine.ledger import MAXIMUM, NEIGHBOURS
from adfl_stats.inference.record import FitRecord, RunRecord
from adfl_stats.network.network import Network

__all__ = ["Communication", "before_inference", "communication_of"]

PHASES = ("model", "start", "tuning", "flags", "rounds", "trace", "inference")
WORDS = {
    SUM: ("its summand of a sum over all clients", "everybody, as the sum"),
    MAXIMUM: ("its value of a maximum over all clients", "everybody, as the maximum"),
    ROW: ("its own numbers", "everybody"),
    HASHES: ("hashes of its rows, of 64 bits", "everybody"),
    DATA: ("rows of its data", "everybody"),
    NEIGHBOURS: ("its estimate", "each neighbour"),
}
# The same for a table of 78 characters, by the entry of `what`.
SHORT = {
    WORDS[SUM][0]: "summands, to all as the sum",
    WORDS[MAXIMUM][0]: "values, to all as the maximum",
    WORDS[ROW][0]: "own numbers, to all",
    WORDS[HASHES][0]: "hashes of its rows, to all",
    WORDS[DATA][0]: "rows of its data, to all",
    WORDS[NEIGHBOURS][0]: "estimate, to each neighbour",
}
# The mark of messages as large as a matrix.
MATRIX = "*"


@dataclass(frozen=True, eq=False)
class Communication:
    """What a client sent in a fit, from ``res.communication()``.

    Attributes
    ----------
    table : DataFrame
        A row for each phase (model, start, tuning, flags, rounds, trace, inference) and kind of message: `what` a
        client sends, `to` whom, how many `messages`, `numbers` and `bytes` these are, the numbers of the `largest`,
        and whether these are as large as a `matrix`, of p x p numbers or more for p columns: sums of several vectors
        may be, without one. In the phase `model`, when the model is built, rows are
        checked; that is counted for each fit. To neighbours, messages are rounds, and numbers those that each
        neighbour hears. `gossip` are the rounds between neighbours that these took without a centre
        (`Gossip`), and `gossip_numbers` what a client sent in them to each neighbour. The rounds do not need what is
        in `trace`: it is looked at while they run.
    rounds_needed : float
        About how many rounds the network would need where the limit of the rounds was solved for.
    coefficients, neighbours : int, float
        P, and the mean number of others that hear a client.
    hub : int
        The numbers that a client sends in one Newton step through a hub: its gradient and its curvature.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3))
    >>> sent = model.fit(ad.DFL(), step=0.1, rounds=100).communication()
    >>> sent.hub, sent.neighbours, sent.table["phase"].unique().tolist()
    (5, 3.0, ['model', 'start', 'rounds', 'trace', 'inference'])
    """

    table: pd.DataFrame
    rounds_needed: float
    coefficients: int
    neighbours: float

    @property
    def hub(self) -> int:
        """Return P + P (P + 1) / 2."""
        P = self.coefficients
        return P + P * (P + 1) // 2

    @property
    def numbers(self) -> int:
        """All numbers that leave a client: to neighbours once for each of them."""
        return round(float((self.table["numbers"] * self._receivers).sum()))

    @property
    def bytes(self) -> int:
        """The bytes of `numbers`."""
        return round(float((self.table["bytes"] * self._receivers).sum()))

    @property
    def _receivers(self) -> pd.Series:
        return pd.Series(np.where(self.table["to"] == WORDS[NEIGHBOURS][1], self.neighbours, 1.0), self.table.index)

    def to_frame(self) -> pd.DataFrame:
        """Return the table.

        Returns
        -------
        DataFrame
            As in `table`.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3))
        >>> sent = model.fit(ad.DFL(), step=0.1, rounds=100).communication()
        >>> table = sent.to_frame()
        >>> table.loc[table["to"] == "each neighbour", "messages"].sum().item()
        100
        """
        return self.table.copy()

    def in_words(self) -> str:
        """Return one sentence, as the summary has it.

        Returns
        -------
        str
            The numbers of a client and the rounds.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3))
        >>> sent = model.fit(ad.DFL(), step=0.1, rounds=100).communication()
        >>> sent.in_words().split("; ")[1]
        'one Newton step through a hub: 5 numbers'
        """
        size, hub = size_in_words(self.bytes), f"one Newton step through a hub: {self.hub} numbers"
        return f"each client sent {self.numbers:,} numbers ({size}); {hub}"

    def __str__(self) -> str:
        gossip = bool(self.table["gossip"].any())
        shown = pd.DataFrame(
            {
                "phase": self.table["phase"],
                "what, and to whom": self.table["what"].map(SHORT),
                "messages": self.table["messages"],
                "numbers": self.table["numbers"].map("{:,}".format),
                "size": self.table["bytes"].map(size_in_words),
                "largest": [
                    f"{one:,}{MATRIX if wide else ' '}" for one, wide in self.table[["largest", "matrix"]].values
                ],
            }
        )
        if gossip:
            shown = shown[["phase", "what, and to whom", "messages"]].assign(
                rounds=self.table["gossip"].map("{:,}".format),
                **{"numbers to each": self.table["gossip_numbers"].map("{:,}".format)},
            )
        shown.loc[shown["phase"].duplicated(), "phase"] = ""
        notes = [f"E{self.in_words()[1:]}."]
        if self.table["matrix"].any() and not gossip:
            notes.append(f"{MATRIX} as large as a matrix: p x p numbers or more, for p columns.")
        if np.isfinite(self.rounds_needed):
            told = self.rounds_needed * self.coefficients
            notes.append(
                f"The limit of the rounds was solved for; the rounds themselves, about {self.rounds_needed:,.0f}, "
                f"would send {told:,.0f} numbers to each neighbour."
            )
        if gossip:
            rounds, numbers = (int(self.table[name].sum()) for name in ("gossip", "gossip_numbers"))
            notes.append(f"Without a centre: {rounds:,} rounds of messages, {numbers:,} numbers to each neighbour.")
        return framed("What a client sent", _words_left(shown).to_string(index=False), notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<h3>What a client sent</h3>{self.table.to_html(index=False)}<p>E{self.in_words()[1:]}.</p>"


def _words_left(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose first two columns, of words, and their heads begin on the left as text."""
    words = table.columns[:2]
    width = {name: max(table[name].str.len().max(), len(name)) for name in words}
    padded = table.assign(**{name: table[name].str.ljust(width[name]) for name in words})
    return padded.rename(columns={name: name.ljust(width[name]) for name in words})


def communication_of(record: FitRecord) -> Communication:
    """Return what left a client; inference is computed first, so that it is counted."""
    record.at_estimate.parts()
    return _communication(record, PHASES)


def before_inference(record: RunRecord) -> Communication:
    """Return what left a client until inference, of which more may be computed later."""
    return _communication(record, PHASES[:-1])


def _communication(record: RunRecord, phases: Sequence[str]) -> Communication:
    """Return what left a client in some phases, in their order."""
    P, width = len(record.names), record.theta.dtype.itemsize
    square = (len(record.columns) if isinstance(record, FitRecord) else P) ** 2
    columns = ["phase", "what", "to", "messages", "numbers", "bytes", "largest", "matrix", "gossip", "gossip_numbers"]
    rows = [
        (name, *WORDS[kind], one.messages, one.numbers, width * one.numbers, one.largest,
         _may_be_matrix(name, kind) and one.largest >= square > 1, one.gossip_rounds, one.gossip_numbers)
        for name in phases
        for kind in WORDS
        if (one := record.ledger.entries.get((name, kind))) is not None
    ]  # fmt: skip
    return Communication(pd.DataFrame(rows, columns=columns), record.rounds_needed, P, _listeners(record))


def _may_be_matrix(name: str, kind: str) -> bool:
    """Return whether messages can be matrices: summands, and of own numbers only the triangle of X in the checks."""
    return kind == SUM or (kind == ROW and name == "model")


def _listeners(record: RunRecord) -> float:
    """Return the mean number of others that hear a client; of a schedule, in its first network."""
    network = record.network if isinstance(record.network, Network) else record.network.at(0).network
    return float(network.n_edges / network.n_clients)
