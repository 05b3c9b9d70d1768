"""The network: which client receives from which, and with what weight."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from adfl_stats._arguments import in_interval, listing, whole_number
from adfl_stats._text import factor_text
from adfl_stats._warn import warn
from adfl_stats.errors import NetworkWarning
from adfl_stats.network import balance, files, spectrum
from adfl_stats.network import inputs as given
from adfl_stats.network.inputs import EdgesLike, MatrixLike
from adfl_stats.network.measures import NetworkMeasures

if TYPE_CHECKING:
    import networkx

__all__ = ["Network"]

# Given rows sum to 1 up to this, and are brought to 1 exactly. Ours: half of the digits of float64.
ROW_SUM_TOLERANCE = 1e-8
# Most combination steps of `gossip`. Ours: far more than any application needs in a round.
MOST_STEPS = 10**6


@dataclass(frozen=True, eq=False, repr=False)
class Network(NetworkMeasures):
    """Who listens to whom: ``W[m, k] > 0`` means client m RECEIVES from client k; rows of W sum to one.

    W is normalised by in-degree, ``w_mk = a_mk / d_m`` with ``d_m = sum_k a_mk``, so that ``W @ theta`` is
    each client's mean over those it listens to (the paper's first step of the DFL update). Mind the
    direction: networkx and tables of edges write an arrow from the sender to the receiver.

    Make a network by one of the ``from_...`` constructors, which check their input, or by a generator in
    `adfl_stats.networks`; the bare constructor takes checked arrays and trusts them. A network never
    changes: its arrays are read-only, and each repair returns a new network.

    Parameters
    ----------
    indptr, indices, weights : ndarray
        The rows of W in compressed form: client m listens to ``indices[indptr[m]:indptr[m + 1]]``,
        in increasing order, with the weights at the same places.
    labels : pandas.Index
        The clients' names, in the order of the rows.

    Examples
    --------
    >>> net = Network.from_edges([("hub", "a"), ("hub", "b"), ("a", "hub"), ("b", "hub")])
    >>> net
    Network(3 clients, 4 edges, SE(W)=0.707, rho=1.707)
    >>> net.influence.round(3).to_dict()
    {'a': 0.25, 'b': 0.25, 'hub': 0.5}
    """

    def __reduce__(self) -> tuple[type[Network], tuple[Any, ...]]:
        # Unpickled arrays are writeable again, so that the constructor has to run.
        return Network, (self.indptr, self.indices, self.weights, self.labels)

    # ------------------------------------------------------------------ constructors

    @classmethod
    def from_adjacency(cls, A: MatrixLike, labels: Iterable[Hashable] | None = None) -> Network:
        """Make a network in which each client takes the plain mean over those it listens to.

        Parameters
        ----------
        A : array, scipy sparse matrix or DataFrame
            ``A[m, k] = 1`` if client m receives from client k, else 0. Self loops are kept.
        labels : iterable, optional
            One name per client; a DataFrame brings its own.

        Examples
        --------
        >>> Network.from_adjacency([[0, 1, 0], [1, 0, 1], [1, 1, 0]], labels=["a", "b", "c"]).W.toarray()
        array([[0. , 1. , 0. ],
               [0.5, 0. , 0.5],
               [0.5, 0.5, 0. ]])
        """
        return cls._adjacent(*given.adjacency_matrix(A, labels), "A")

    @classmethod
    def from_weights(cls, W: MatrixLike, labels: Iterable[Hashable] | None = None) -> Network:
        """Make a network from weights whose rows sum to 1 (within 1e-8; the rest is scaled away).

        Parameters
        ----------
        W : array, scipy sparse matrix or DataFrame
            ``W[m, k]`` is the weight client m gives to what it receives from client k.
        labels : iterable, optional
            One name per client; a DataFrame brings its own.

        Examples
        --------
        >>> Network.from_weights([[0.5, 0.5], [0.25, 0.75]]).influence.round(3).tolist()
        [0.333, 0.667]
        """
        csr, index = given.matrix_and_labels(W, labels, "W")
        return cls._weighted(csr, index)

    @classmethod
    def from_networkx(cls, G: networkx.Graph, weight: str | None = None) -> Network:
        """Make a network from a networkx graph, in which an edge u -> v means that v receives from u.

        Parameters
        ----------
        G : networkx graph
            Directed or not. The nodes' names become the labels. Parallel edges merge, adding their weights.
        weight : str, optional
            The edge attribute with the weights, scaled to sum 1 for each receiver; None for equal weights.

        Examples
        --------
        >>> import networkx
        >>> Network.from_networkx(networkx.cycle_graph(5))
        Network(5 clients, 10 edges, SE(W)=0, rho=0.6545)
        """
        return cls._adjacent(*given.graph_matrix(G, weight), "G")

    @classmethod
    def from_edges(cls, edges: EdgesLike, labels: Iterable[Hashable] | None = None) -> Network:
        """Make a network from a list of edges; source -> target means that target receives from source.

        Parameters
        ----------
        edges : DataFrame, path of a CSV file, or iterable of pairs
            A frame of pandas, polars or Arrow. Columns source, target and, if wanted, weight. Weights are scaled to
            sum 1 for each target.
            Edges stated twice count once, with a NetworkWarning; if their weights differ it is an error.
        labels : iterable, optional
            All clients, in the order wanted. By default the names in `edges`, sorted.

        Examples
        --------
        >>> Network.from_edges([("a", "b"), ("b", "a"), ("b", "c"), ("a", "c")]).in_degree.to_dict()
        {'a': 1, 'b': 1, 'c': 2}
        """
        return cls._adjacent(*given.edge_matrix(given.edge_table(edges), labels), "edges")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], weights: bool | None = None) -> Network:
        """Read a network from a file; its ending says how.

        A client that receives from nobody keeps its own estimate, ``w_mm = 1``, with a NetworkWarning that
        names it: networks in files are read to be checked, and `check_network` says what such a client does.

        Parameters
        ----------
        path : str or path
            ``.csv``: edges, with columns source, target and, if wanted, weight (see `from_edges`); names of clients
            stay as they are written, so that 007 is text, and numbers are whole.
            ``.npy``, ``.npz`` (NumPy's or scipy's), ``.mtx``: a matrix whose row m has what client m
            receives. ``.graphml``: a graph, with arrows to the receiver; needs networkx.
        weights : bool, optional
            Whether a matrix has weights, with row sums 1, or is an adjacency matrix of 0 and 1; whether a
            graph has the edge attribute ``weight``. By default the file decides: entries other than 0 and
            1, or a weight on every edge of the graph, with a NetworkWarning where that makes a difference. Not
            used for edges, which have a column or not.

        Examples
        --------
        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "edges.csv")
        ...     pd.DataFrame({"source": ["a", "b"], "target": ["b", "a"]}).to_csv(path)
        ...     Network.from_file(path).labels.tolist()
        ['a', 'b']
        """
        content = files.read(path)
        weighted = content.has_weights if weights is None else weights
        if content.remark and weights is None:
            warn(content.remark, NetworkWarning)
        if content.kind == "matrix" and weighted:
            csr, index = given.matrix_and_labels(content.value, None, "W")
            return cls._weighted(given.with_own_estimates(csr, index, "W"), index)
        if content.kind == "matrix":
            A, index, name = *given.adjacency_matrix(content.value, None), "A"
        elif content.kind == "graph":
            A, index, name = *given.graph_matrix(content.value, "weight" if weighted else None), "G"
        else:
            A, index, name = *given.edge_matrix(given.edge_table(content.value), None), "edges"
        return cls._adjacent(given.with_own_estimates(A, index, name), index, name)

    @classmethod
    def _adjacent(cls, A: sparse.csr_array, labels: pd.Index, name: str) -> Network:
        """Scale rows to sum 1; each client must have an in-neighbour."""
        return cls.from_checked(given.row_normalised(given.refuse_empty_rows(A, labels, name)), labels)

    @classmethod
    def _weighted(cls, W: sparse.csr_array, labels: pd.Index) -> Network:
        """Take weights whose rows must sum to 1."""
        sums = given.row_sums(W)
        off = np.flatnonzero(np.abs(sums - 1.0) > ROW_SUM_TOLERANCE)
        if off.size:
            examples = ", ".join(f"{listing([labels[m]])}: {sums[m]:.10g}" for m in off[:5])
            raise ValueError(
                f"W has {off.size} rows that do not sum to 1 ({examples}). Divide each row by its sum; "
                "if the columns sum to 1 instead, pass the transpose; for 0/1 entries use from_adjacency"
            )
        return cls.from_checked(given.row_normalised(W), labels)

    @classmethod
    def from_checked(cls, W: sparse.csr_array, labels: pd.Index) -> Network:
        """Copy a row-stochastic matrix, which is not checked again.

        Parameters
        ----------
        W : csr_array
            Row-stochastic; its arrays may be another network's.
        labels : pandas.Index
            One name per client.

        Examples
        --------
        >>> net = Network.from_adjacency([[1, 1], [0, 1]])
        >>> Network.from_checked(net.W, net.labels).n_edges
        1
        """
        W = W.copy()
        W.sum_duplicates()
        W.eliminate_zeros()
        small = max(W.nnz, W.shape[0]) < np.iinfo(np.int32).max
        kind: type[np.signedinteger] = np.int32 if small else np.int64
        arrays = (W.indptr.astype(kind, copy=False), W.indices.astype(kind, copy=False))
        return cls(*arrays, W.data.astype(np.float64, copy=False), labels)

    def to_networkx(self) -> networkx.DiGraph:
        """Return a networkx graph with an edge u -> v of weight ``w_vu`` where v receives from u.

        Returns
        -------
        networkx.DiGraph
            Its nodes are the labels.

        Examples
        --------
        >>> graph = Network.from_edges([("a", "b"), ("b", "a"), ("a", "a")]).to_networkx()
        >>> graph["b"]["a"]["weight"]
        0.5
        """
        graph = given.networkx_module().DiGraph()
        names = list(self.labels)
        graph.add_nodes_from(names)
        receiver = np.repeat(np.arange(self.n_clients), np.diff(self.indptr))
        triples = zip(self.indices.tolist(), receiver.tolist(), self.weights.tolist(), strict=True)
        graph.add_weighted_edges_from((names[k], names[m], w) for k, m, w in triples)
        return graph

    # ------------------------------------------------------------------ other networks from this one

    def reindex(self, labels: Iterable[Hashable]) -> Network:
        """Return the same network with the clients in the order of `labels`.

        Parameters
        ----------
        labels : iterable
            The clients, each once.

        Returns
        -------
        Network
            The rows and columns of W permuted.

        Examples
        --------
        >>> net = Network.from_edges([("a", "b"), ("b", "a"), ("b", "c")])
        >>> net.reindex(["c", "b", "a"]).labels.tolist()
        ['c', 'b', 'a']
        """
        wanted = given.label_index(labels, "labels")
        missing = self.labels[~self.labels.isin(wanted)]
        unknown = wanted[~wanted.isin(self.labels)]
        if len(missing) or len(unknown):
            raise ValueError(
                "labels must be the clients of the network in another order; "
                f"in the network but not in labels: {listing(missing) or 'none'}; "
                f"in labels but not in the network: {listing(unknown) or 'none'}. "
                "Make the network anew on the clients wanted; text and number are different names"
            )
        order = self.labels.get_indexer(wanted)
        return Network.from_checked(self.csr[order][:, order], wanted)

    def lazy(self, w: float = 0.5) -> Network:
        """Return ``(1 - w) W + w I``: each client keeps the share `w` of its own estimate, so that the period is 1.

        Parameters
        ----------
        w : float
            The share, in [0, 1).

        Returns
        -------
        Network
            With the same influence.

        Examples
        --------
        >>> net = Network.from_adjacency([[0, 1], [1, 0]])
        >>> net.period, net.lazy(0.5).period
        (2, 1)
        """
        w = in_interval(w, "w", 0.0, 1.0, open_high=True)
        identity = sparse.eye_array(self.n_clients, format="csr")
        return Network.from_checked(sparse.csr_array((1.0 - w) * self.csr + w * identity), self.labels)

    def gossip(self, k: int) -> Network:
        """Return ``W^k``: `k` combination steps in each round.

        Parameters
        ----------
        k : int
            How many, from 1 to a million.

        Returns
        -------
        Network
            It has more edges, and mixes faster.

        Examples
        --------
        >>> net = Network.from_adjacency([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
        >>> bool(net.gossip(2).rho < net.rho)
        True
        """
        k = whole_number(k, "k", 1, MOST_STEPS)
        power, square = None, self.csr
        # By squares: as many products as k has binary digits, twice.
        while k:
            if k % 2:
                power = square if power is None else power @ square
            k //= 2
            square = square @ square if k else square
        return Network.from_checked(given.row_normalised(sparse.csr_array(power)), self.labels)

    def metropolis(self) -> Network:
        """Return the doubly stochastic Metropolis weights on the same edges.

        ``w_mk = 1 / (1 + max(d_m, d_k))`` for neighbours, where degrees do not count self loops; what
        remains of each row is the client's own weight. Each pair of neighbours must listen to each other.

        Returns
        -------
        Network
            Doubly stochastic, with symmetric weights.

        Examples
        --------
        >>> star = Network.from_edges([("hub", "a"), ("hub", "b"), ("a", "hub"), ("b", "hub")])
        >>> star.metropolis().se
        0.0
        """
        return Network.from_checked(balance.metropolis_weights(self.csr, self.labels), self.labels)

    def balanced(self) -> Network:
        """Return the doubly stochastic ``diag(r) W diag(c)`` on the same edges (Sinkhorn and Knopp 1967).

        It keeps zeros, and of all doubly stochastic weights on these edges it is the nearest to W in
        Kullback-Leibler distance. ValueError where the edges do not allow it, as on a star.

        Returns
        -------
        Network
            Doubly stochastic, on the same edges.

        Examples
        --------
        >>> net = Network.from_adjacency([[1, 1, 1], [1, 1, 0], [1, 0, 1]])
        >>> net.balanced().W.toarray().round(3).tolist()
        [[0.236, 0.382, 0.382], [0.382, 0.618, 0.0], [0.382, 0.0, 0.618]]
        """
        if self.is_doubly_stochastic:
            return self
        return Network.from_checked(balance.scaled_to_balance(self.csr, self.labels), self.labels)

    def __repr__(self) -> str:
        text = f"Network({self.n_clients} clients, {self.n_edges} edges, SE(W)={self.se:.3g}"
        if self.n_clients <= spectrum.DENSE_MIXING:
            text += f", rho={factor_text(self.rho)}"
        return text + ")"

    def _repr_html_(self) -> str:
        facts = {"clients": f"{self.n_clients:,}", "edges": f"{self.n_edges:,}", "SE(W)": f"{self.se:.3g}"}
        if self.n_clients <= spectrum.DENSE_MIXING:
            facts["rho (Condition 5: below 1)"] = factor_text(self.rho)
        facts["clients with influence zero"] = str(len(self.unheard))
        return pd.Series(facts, name="Network").to_frame().to_html()
