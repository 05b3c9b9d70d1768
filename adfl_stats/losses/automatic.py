"""Losses written in JAX or PyTorch, whose gradients those packages derive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from adfl_stats._arguments import one_of, whole_number
from adfl_stats._types import Array
from adfl_stats.losses.any_loss import PRECISIONS, Losses, Metrics, together
from adfl_stats.losses.entry_names import EntryNames, block_of

if TYPE_CHECKING:
    import torch

__all__ = ["from_jax", "from_torch"]


def from_jax(
    loss: Callable[[Any, Any], Any],
    params: Any,
    data: Sequence[Any] | Mapping[Any, Any],
    *,
    batch: int | None = None,
    metrics: Metrics | None = None,
    hessian: bool = False,
    precision: str = "float64",
    seed: int = 0,
) -> Losses:
    """Make an objective of a loss in JAX.

    Clients are computed one after the other, not by ``vmap``, which takes twice as long for convolutions on a CPU.

    Parameters
    ----------
    loss : callable
        Of the parameters and rows: the mean loss of the rows. It is compiled by ``jax.jit``.
    params : pytree
        Initial parameters, from scratch or those to be tuned.
    data : sequence or mapping of pytrees
        The rows of each client, such as (X, y); in every leaf the first axis is that of the rows.
    batch : int, optional
        Rows of a minibatch, drawn anew without replacement for every gradient; all rows if not given.
    metrics : mapping of callables, or callable, optional
        Of the parameters: numbers to follow during the rounds, or several by name.
    hessian : bool
        Whether to derive Hessian products as well, for standard errors: see `Losses`.
    precision : {"float64", "float32"}
        Of the computation, and of the clients' estimates during the rounds.
    seed : int
        Of the minibatches.

    Returns
    -------
    Losses
        For `DecentralizedModel`; ``losses.unravel(res.record.params)`` is the pytree of an estimate.

    Examples
    --------
    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(5, 60, 2))
    >>> y = X @ [1.0, -1.0] + 0.1 * rng.normal(size=(5, 60))
    >>> def loss(params, rows):
    ...     return ((rows[0] @ params["slope"] - rows[1]) ** 2).mean() / 2
    >>> losses = ad.losses.from_jax(loss, {"slope": np.zeros(2)}, list(zip(X, y)))
    >>> res = ad.DecentralizedModel(losses, ad.networks.complete(5)).fit(step=0.2, rounds=100)
    >>> res.params.round(1).to_dict()
    {'slope[0]': 1.0, 'slope[1]': -1.0}
    >>> losses.unravel(res.params)["slope"].round(1).tolist()
    [1.0, -1.0]
    """
    jax = _package("jax")
    ravel = import_module("jax.flatten_util").ravel_pytree
    wide = one_of(precision, "precision", PRECISIONS) == "float64"

    def exact(work: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*arguments: Any) -> Any:
            with jax.enable_x64(wide):
                return work(*arguments)

        return inside

    labels, held, sizes = _clients(data, jax.tree_util.tree_leaves)
    size = None if batch is None else whole_number(batch, "batch", 1)
    params = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf, dtype=precision), params)
    flat, unravel = exact(ravel)(params)
    held = [exact(jax.tree_util.tree_map)(lambda leaf: _as(np.asarray(leaf), precision), one) for one in held]
    slope = jax.jit(jax.grad(lambda theta, rows: loss(unravel(theta), rows)))
    value = jax.jit(lambda theta, rows: loss(unravel(theta), rows))

    def rows_of(m: int, rng: np.random.Generator | None) -> Any:
        if rng is None or size is None or size >= sizes[m]:
            return held[m]
        chosen = rng.choice(sizes[m], size, replace=False)
        return jax.tree_util.tree_map(lambda leaf: leaf[chosen], held[m])

    def gradient(m: int, theta: Array, rng: np.random.Generator | None) -> Array:
        return np.asarray(slope(theta.astype(precision), rows_of(m, rng)))

    @jax.jit
    def along(theta: Any, vector: Any, rows: Any) -> Any:
        return jax.jvp(lambda at: slope(at, rows), (theta,), (vector,))[1]

    def product(m: int, theta: Array, vector: Array) -> Array:
        return np.asarray(along(theta.astype(precision), vector.astype(precision), held[m]))

    def own_loss(m: int, theta: Array) -> float:
        return float(value(theta.astype(precision), held[m]))

    followed = together(metrics)

    return Losses(
        exact(gradient),
        sizes,
        np.asarray(flat, dtype=np.float64),
        labels=labels,
        names=_leaf_names(jax, params),
        loss=exact(own_loss),
        product=exact(product) if hessian else None,
        batch=size,
        unravel=exact(lambda theta: unravel(np.asarray(theta, dtype=precision))),
        metrics=exact(lambda theta: followed(unravel(theta.astype(precision)))),
        seed=seed,
        precision=precision,
    )


def from_torch(
    module: torch.nn.Module,
    loss: Callable[[Any, Any], Any],
    data: Sequence[tuple[Any, Any]] | Mapping[Any, tuple[Any, Any]],
    *,
    batch: int | None = None,
    metrics: Metrics | None = None,
    hessian: bool = False,
    precision: str | None = None,
    seed: int = 0,
) -> Losses:
    """Make an objective of a PyTorch module and a loss; tested with torch 2.13 on a CPU.

    Parameters
    ----------
    module : torch.nn.Module
        The model, with its initial parameters; it is used as it is, in training mode if it is in it. One fit at a time
        may use it.
    loss : callable
        Of the module's output and the targets, such as ``torch.nn.functional.cross_entropy``.
    data : sequence or mapping of pairs of tensors
        Inputs and targets of each client; the first axis is that of the rows.
    batch : int, optional
        Rows of a minibatch, drawn anew without replacement for every gradient; all rows if not given.
    metrics : mapping of callables, or callable, optional
        Of the module, with a client's parameters in it: numbers to follow during the rounds, or several by name.
    hessian : bool
        Whether to derive Hessian products as well, for standard errors: see `Losses`.
    precision : {"float64", "float32"}, optional
        Of the clients' estimates during the rounds; that of the module's parameters if not given.
    seed : int
        Of the minibatches.

    Returns
    -------
    Losses
        For `DecentralizedModel`; ``losses.unravel(res.record.params)`` are the tensors of an estimate by name, for
        ``module.load_state_dict(..., strict=False)``.

    Examples
    --------
    >>> import torch  # doctest: +SKIP
    >>> data = [(torch.randn(60, 2), torch.randn(60, 1)) for _ in range(5)]  # doctest: +SKIP
    >>> losses = ad.losses.from_torch(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss, data)  # doctest: +SKIP
    """
    torch = _package("torch")
    labels, held, sizes = _clients(data, list)
    size = None if batch is None else whole_number(batch, "batch", 1)
    parameters = [one for one in module.parameters() if one.requires_grad]
    if not parameters:
        raise ValueError("module has no parameters that require a gradient; there is nothing to fit")
    kind, one_client = parameters[0].dtype, Lock()

    def set_to(theta: Array) -> None:
        # A copy: parameters become views of what they are set to.
        torch.nn.utils.vector_to_parameters(torch.tensor(np.array(theta), dtype=kind), parameters)

    def loss_at(m: int, theta: Array, rng: np.random.Generator | None) -> Any:
        inputs, targets = held[m]
        if rng is not None and size is not None and size < sizes[m]:
            chosen = torch.as_tensor(rng.choice(sizes[m], size, replace=False))
            inputs, targets = inputs[chosen], targets[chosen]
        set_to(theta)
        return loss(module(inputs), targets)

    def gradient(m: int, theta: Array, rng: np.random.Generator | None) -> Array:
        # The module holds one client's parameters at a time; torch has threads of its own.
        with one_client:
            parts = torch.autograd.grad(loss_at(m, theta, rng), parameters)
        return np.concatenate([one.detach().numpy().ravel() for one in parts])

    def own_loss(m: int, theta: Array) -> float:
        with one_client, torch.no_grad():
            return float(loss_at(m, theta, None))

    def product(m: int, theta: Array, vector: Array) -> Array:
        with one_client:
            slopes = torch.autograd.grad(loss_at(m, theta, None), parameters, create_graph=True)
            along = torch.cat([one.reshape(-1) for one in slopes]) @ torch.as_tensor(vector, dtype=kind)
            # A loss that is linear in some parameter has no second derivative there.
            parts = torch.autograd.grad(along, parameters, allow_unused=True, materialize_grads=True)
        return np.concatenate([one.detach().numpy().ravel() for one in parts])

    followed = together(metrics)

    def watched(theta: Array) -> Mapping[str, Any]:
        with one_client, torch.no_grad():
            set_to(theta)
            return {name: float(value) for name, value in followed(module).items()}

    named = [(name, one) for name, one in module.named_parameters() if one.requires_grad]

    def tensors(theta: Any) -> dict[str, Any]:
        values = torch.tensor(np.array(theta), dtype=kind).split([one.numel() for _, one in named])
        return {name: part.reshape(one.shape) for (name, one), part in zip(named, values, strict=True)}

    return Losses(
        gradient,
        sizes,
        torch.nn.utils.parameters_to_vector(parameters).detach().numpy(),
        labels=labels,
        names=EntryNames([block_of(name, tuple(one.shape)) for name, one in named]),
        loss=own_loss,
        product=product if hessian else None,
        batch=size,
        unravel=tensors,
        metrics=watched,
        seed=seed,
        precision=precision or ("float64" if kind == torch.float64 else "float32"),
    )


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ImportError(
            f"losses in {name} need that package; install it with: pip install 'adfl-stats[{name}]'"
        ) from None


def _clients(data: Any, leaves: Callable[[Any], list[Any]]) -> tuple[list[Any] | None, list[Any], list[int]]:
    """Return labels, rows and numbers of rows of the clients."""
    labels = list(data) if isinstance(data, Mapping) else None
    held = list(data.values()) if isinstance(data, Mapping) else list(data)
    sizes = []
    for m, one in enumerate(held):
        lengths = {len(leaf) for leaf in leaves(one)}
        if len(lengths) != 1:
            raise ValueError(
                f"data: the arrays of client {m if labels is None else labels[m]!r} have {sorted(lengths)} rows; all "
                "must have the same number"
            )
        sizes.append(lengths.pop())
    return labels, held, sizes


def _as(leaf: Any, precision: str) -> Any:
    """Return real numbers in the precision of the computation, others as they are."""
    return leaf.astype(precision) if np.issubdtype(leaf.dtype, np.floating) else leaf


def _leaf_names(jax: Any, params: Any) -> EntryNames:
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    named = [
        (".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path), leaf) for path, leaf in paths
    ]
    return EntryNames([block_of(name or "p", np.shape(leaf)) for name, leaf in named])
