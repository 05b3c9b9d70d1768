"""The networks of the paper's section 5.2 in JAX: LeNet5, VGG16, and a VGG small enough for a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np

from adfl_stats._types import Array

__all__ = ["ImageNetwork", "cross_entropy", "lenet5", "of_file", "small_vgg", "vgg16"]

# Channels of the convolutions, 3 x 3 each; "M" halves the sides.
VGG16 = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")
SMALL_VGG = (16, 16, "M", 32, 32, "M", 64, 64, "M")

# Images at a time. Ours: 1,000 in parts of 50 take 50 ms of a core with LeNet5, 80 ms at once.
PART = 50


class ImageNetwork:
    """A network for the classes of images: convolutions, then dense layers.

    Parameters
    ----------
    shapes : sequence of tuple of int
        Of the layers' weights; those of convolutions have four entries.
    convolved : callable
        Of the convolutions' parameters and images (rows, height, width, channels): the units after them.
    activation : callable
        Of dense layers but the last.
    seed : int
        Of the initial parameters.

    Attributes
    ----------
    params : list of tuple of ndarray
        Weights and offsets of each layer: Glorot and Bengio's (Xavier) uniform draws, and zeros.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        convolved: Callable[[Any, Any], Any],
        activation: Callable[[Any], Any],
        seed: int,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.params = [(_xavier(rng, shape), np.zeros(shape[-1], dtype=np.float32)) for shape in shapes]
        self._convolutions = sum(len(shape) == 4 for shape in shapes)
        self._convolved, self._activation = convolved, activation

    @property
    def n_params(self) -> int:
        """How many numbers the parameters are."""
        return sum(weight.size + offset.size for weight, offset in self.params)

    def hidden(self, params: Any, images: Any) -> Any:
        """Return the units (rows, q) between convolutions and dense layers."""
        return self._convolved(params[: self._convolutions], images).reshape(len(images), -1)

    def logits(self, params: Any, images: Any) -> Any:
        """Return one number for each class (rows, classes)."""
        at = self.hidden(params, images)
        *inner, (weights, offsets) = params[self._convolutions :]
        for weight, offset in inner:
            at = self._activation(at @ weight + offset)
        return at @ weights + offsets

    def logits_in_parts(self, params: Any, images: Any) -> Any:
        """Return `logits` of many images, some at a time: all at once do not fit into a processor's cache."""
        import jax

        whole, logits = len(images) // PART * PART, []
        if whole > 0:
            parts = images[:whole].reshape(-1, PART, *images.shape[1:])
            logits += [jax.lax.map(lambda part: self.logits(params, part), parts).reshape(whole, -1)]
        if whole < len(images):
            logits += [self.logits(params, images[whole:])]
        return jax.numpy.concatenate(logits)

    def loss(self, params: Any, rows: Any) -> Any:
        """Return the mean cross-entropy of rows (images, classes)."""
        images, classes = rows
        return cross_entropy(self.logits(params, images), classes)


def cross_entropy(logits: Any, classes: Any) -> Any:
    """Return the mean cross-entropy of logits (rows, classes) and the right classes (rows,)."""
    import jax

    logs = jax.nn.log_softmax(logits)
    return -jax.numpy.take_along_axis(logs, classes[:, None], axis=1).mean()


def lenet5(seed: int = 0) -> ImageNetwork:
    """Return LeNet5 of LeCun et al. (1998) for 28 x 28 grey images: 61,706 parameters, tanh, mean pooling."""
    from jax import numpy as jnp

    def convolved(layers: Any, images: Any) -> Any:
        framed = jnp.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
        at = _pooled(jnp.tanh(_banded_convolution(framed, layers[0])), "mean")
        return _pooled(jnp.tanh(_banded_convolution(at, layers[1])), "mean")

    return ImageNetwork([(5, 5, 1, 6), (5, 5, 6, 16), (400, 120), (120, 84), (84, 10)], convolved, jnp.tanh, seed)


def vgg16(seed: int = 0) -> ImageNetwork:
    """Return VGG16 of Simonyan & Zisserman (2014) for 32 x 32 colour images: 15,245,130 parameters.

    The paper tunes one that was trained before: give its parameters to `losses.from_jax` in the place of these, or
    a file of them to ``adfl-stats reproduce section5.2 --weights``.
    """
    return _vgg(VGG16, (512, 512, 512, 10), seed)


def small_vgg(seed: int = 0) -> ImageNetwork:
    """Return a VGG with six convolutions for 32 x 32 colour images: 138,330 parameters, which a CPU can train."""
    return _vgg(SMALL_VGG, (1024, 64, 10), seed)


def of_file(path: str | PathLike[str]) -> ImageNetwork:
    """Return LeNet5, VGG16 or the small VGG with the parameters of a file, whichever has their shapes.

    Parameters
    ----------
    path : str or path
        A NumPy archive with weight0, offset0, weight1, offset1 and so on, convolutions first. Weights of convolutions
        are (height, width, channels, features), those of dense layers (inputs, outputs); rows, columns and then
        channels of the last convolution are the inputs of the first dense layer.
    """
    with np.load(path, allow_pickle=False) as archive:
        count = sum(name.startswith("weight") for name in archive.files)
        wanted = [f"{kind}{k}" for k in range(count) for kind in ("weight", "offset")]
        if not count or set(wanted) != set(archive.files):
            raise ValueError(
                f"{path} has the arrays {sorted(archive.files)}; weight0, offset0, weight1, ... are wanted"
            )
        given = [tuple(archive[f"{kind}{k}"].astype(np.float32) for kind in ("weight", "offset")) for k in range(count)]
    shapes = [tuple(part.shape for part in layer) for layer in given]
    for make in (lenet5, small_vgg, vgg16):
        network = make()
        if [tuple(part.shape for part in layer) for layer in network.params] == shapes:
            network.params = given
            return network
    raise ValueError(
        f"{path} has weights of shapes {[weight for weight, _ in shapes]}, which are those of no network here: LeNet5, "
        "the small VGG and VGG16 for 32 x 32 images"
    )


def _vgg(plan: Sequence[int | str], dense: Sequence[int], seed: int) -> ImageNetwork:
    import jax

    channels = [3, *(part for part in plan if not isinstance(part, str))]
    shapes: list[tuple[int, ...]] = [(3, 3, before, after) for before, after in pairwise(channels)]

    def convolved(layers: Any, images: Any) -> Any:
        at, left = images, iter(layers)
        for part in plan:
            at = _pooled(at, "max") if isinstance(part, str) else jax.nn.relu(_convolution(at, next(left), "SAME"))
        return at

    return ImageNetwork([*shapes, *pairwise(dense)], convolved, jax.nn.relu, seed)


def _xavier(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw weights uniformly within sqrt(6 / (inputs + outputs)) of zero."""
    field = int(np.prod(shape[:-2]))
    bound = np.sqrt(6.0 / (field * (shape[-2] + shape[-1])))
    return rng.uniform(-bound, bound, size=shape).astype(np.float32)


def _convolution(images: Any, layer: Any, padding: str) -> Any:
    from jax import lax

    axes = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(images, layer[0], (1, 1), padding, dimension_numbers=axes) + layer[1]


def _banded_convolution(images: Any, layer: Any) -> Any:
    """Return the convolution without padding, as one product of rows of the images with a banded matrix.

    For few channels: XLA's own takes 1.6 times as long for a gradient of LeNet5 on a CPU, although it does fewer
    multiplications.
    """
    from jax import numpy as jnp

    weight, offset = layer
    size, _, channels, features = weight.shape
    rows, height, width, _ = images.shape
    across, down = width - size + 1, height - size + 1
    # Column x of the image has tap j of the result's column x - j.
    taps = np.stack([np.eye(width, across, -j, dtype=np.float32) for j in range(size)])
    band = jnp.einsum("ijco,jxy->ixcyo", weight, taps.astype(weight.dtype))
    lines = images.reshape(rows, height, width * channels)
    stacked = jnp.concatenate([lines[:, i : i + down] for i in range(size)], axis=2)
    image = stacked.reshape(rows * down, -1) @ band.reshape(size * width * channels, -1)
    return image.reshape(rows, down, across, features) + offset


def _pooled(images: Any, kind: str) -> Any:
    """Return the mean or the largest of each 2 x 2 square."""
    rows, height, width, channels = images.shape
    squares = images.reshape(rows, height // 2, 2, width // 2, 2, channels)
    return squares.mean(axis=(2, 4)) if kind == "mean" else squares.max(axis=(2, 4))
