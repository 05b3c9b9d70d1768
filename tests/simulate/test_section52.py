"""The networks and the study of the paper's section 5.2, in small."""

from dataclasses import replace

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats.cli.main import main
from adfl_stats.datasets.images import Images

jax = pytest.importorskip("jax")

from adfl_stats.simulate import image_networks, section52, section52_tables  # noqa: E402
from adfl_stats.simulate.image_networks import lenet5, small_vgg, vgg16  # noqa: E402

SMALL = section52.Size(6, 60, 2, 0.2, 30, 40, ("circle-4",), (0.34,), ("LF",))


@pytest.fixture(scope="module")
def images():
    """Ten prototypes in noise."""
    rng = np.random.default_rng(0)
    prototypes = rng.uniform(size=(10, 784)) > 0.7

    def draw(n):
        y = rng.integers(10, size=n)
        return (0.8 * prototypes[y] + 0.2 * rng.uniform(size=(n, 784))).astype(np.float32), y

    return Images("prototypes", *draw(360), *draw(40), tuple("0123456789"), "here", "none")


def test_networks_have_the_sizes_of_their_papers():
    assert lenet5().n_params == 61_706
    assert small_vgg().n_params == 138_330
    # 14,714,688 in the convolutions, as published; the dense layers are those for 32 x 32 images.
    convolutions = sum(weight.size + offset.size for weight, offset in vgg16().params[:13])
    assert convolutions == 14_714_688


def test_initial_weights_are_xaviers():
    weight, offset = lenet5(3).params[2]
    bound = np.sqrt(6.0 / (400 + 120))
    assert not offset.any()
    assert 0.98 * bound < np.abs(weight).max() <= bound
    np.testing.assert_allclose(weight.std(), bound / np.sqrt(3.0), rtol=0.02)


def test_gradients_by_differences():
    net, rng = lenet5(1), np.random.default_rng(0)
    rows = rng.uniform(size=(3, 28, 28, 1)), np.array([1, 5, 9])
    losses = ad.losses.from_jax(net.loss, net.params, [rows])
    theta, direction = losses.start()[0], rng.normal(size=losses.P)
    differences = (losses.loss(0, theta + 1e-6 * direction) - losses.loss(0, theta - 1e-6 * direction)) / 2e-6
    np.testing.assert_allclose(losses.whole_gradients(theta[None])[0] @ direction, differences, rtol=1e-4)


def test_the_banded_product_is_the_convolution():
    rng = np.random.default_rng(2)
    images, weight, offset = rng.normal(size=(3, 9, 7, 2)), rng.normal(size=(5, 5, 2, 3)), rng.normal(size=3)
    found = image_networks._banded_convolution(images, (weight, offset))
    for at in np.ndindex(3, 5, 3):
        window = images[at[0], at[1] : at[1] + 5, at[2] : at[2] + 5]
        wanted = np.einsum("ijc,ijco->o", window, weight) + offset
        np.testing.assert_allclose(found[at], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [20, 50, 130])
def test_logits_in_parts_are_those_at_once(count):
    net, images = lenet5(1), np.random.default_rng(0).uniform(size=(count, 28, 28, 1)).astype(np.float32)
    wanted = net.logits(net.params, images)
    np.testing.assert_allclose(net.logits_in_parts(net.params, images), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("net", [small_vgg(1), vgg16(1)])
def test_shapes_of_the_vggs(net):
    found = jax.eval_shape(net.logits, net.params, np.zeros((3, 32, 32, 3), dtype=np.float32))
    assert found.shape == (3, 10)


def test_a_study_is_resumed(images, tmp_path, monkeypatch):
    setting = next(s for s in section52.settings(SMALL, 1) if s.skew == "labels")
    shared = section52.shared_images(images, setting, SMALL)
    assert shared.abnormal.sum() == 2
    assert all(len(np.unique(classes)) <= 5 for _, classes in shared.data)
    oracle = tmp_path / setting.name / "oracle.csv"
    keep, every = {"oracle", "DFL", "aDFL (agreement)"}, section52.fits
    monkeypatch.setattr(section52, "fits", lambda *a, **k: [fit for fit in every(*a, **k) if set(fit.run_of) <= keep])
    assert set(section52.run_setting(images, setting, SMALL, tmp_path)) == keep
    first = oracle.read_text()
    oracle.write_text("round\n1\n")
    list(section52.run_setting(images, setting, SMALL, tmp_path))
    assert oracle.read_text() == "round\n1\n"
    oracle.write_text(first)
    table = section52_tables.table_of(tmp_path, [setting])
    assert set(table["method"]) == keep
    assert table["accuracy"].between(0.0, 1.0).all()
    assert section52_tables.last_lines(table).shape == (1, 3)
    apart = section52_tables.gaps(table)["mean"].iloc[0]
    ends = table.groupby("method")["accuracy"].last()
    np.testing.assert_allclose(apart["DFL"], ends["DFL"] - ends["oracle"])
    assert len(section52_tables.draw_accuracy(table).axes) == 1


def test_fits_of_another_study_are_not_taken_for_ones_own(images, tmp_path):
    """They were: a folder with 20 rounds a fit had its table written for 150."""
    cells = section52.folder_of(tmp_path / "study", images, SMALL)
    assert section52.folder_of(tmp_path / "study", images, SMALL) == cells
    with pytest.raises(ValueError, match="they differ in size"):
        section52.folder_of(tmp_path / "study", images, replace(SMALL, rounds=3))
    with pytest.raises(ValueError, match="they differ in parameters"):
        section52.folder_of(tmp_path / "study", images, SMALL, lenet5(5))


def test_the_table_has_the_settings_that_are_asked_for(tmp_path):
    first, second = list(section52.settings(SMALL, 2))[::2][:2]
    for setting in (first, second):
        (tmp_path / setting.name).mkdir()
        line = f"round,accuracy,replicate\n2,.5,{setting.replicate}\n"
        (tmp_path / setting.name / "DFL.csv").write_text(line)
    assert section52_tables.table_of(tmp_path, [first])["replicate"].tolist() == [first.replicate]


def test_methods_that_share_a_fit_are_those_alone(images, monkeypatch):
    """BRIDGE-M is the first run of the paper's aDFL, and DFL with the right weights the oracle, to the bit."""
    setting = next(s for s in section52.settings(SMALL, 1) if s.skew == "none")
    shared = section52.shared_images(images, setting, SMALL)
    network = section52.NETWORKS[setting.network](SMALL.M)
    right = (~shared.abnormal).astype(float)
    monkeypatch.setattr(section52, "agreeing", lambda shared: right)
    fits = section52.fits(shared, network, undirected=False)
    model = ad.DecentralizedModel(shared.losses, network)
    alone = {"BRIDGE-M": ad.Bridge("median"), "aDFL (agreement)": ad.DFL(weights=right)}
    for name, method in alone.items():
        fit = next(fit for fit in fits if name in fit.run_of)
        assert len(fit.run_of) == 2
        found = section52._lines(section52._fitted(model, fit.method, SMALL), fit.run_of[name], shared, SMALL)
        wanted = section52._lines(section52._fitted(model, method, SMALL), -1, shared, SMALL)
        assert found.equals(wanted)


def test_parameters_of_a_file(tmp_path):
    net = small_vgg(3)
    parts = {
        f"{kind}{k}": layer[at] for k, layer in enumerate(net.params) for at, kind in enumerate(("weight", "offset"))
    }
    np.savez(tmp_path / "small.npz", **parts)
    read = image_networks.of_file(tmp_path / "small.npz")
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(read.params, net.params, strict=True))
    image = np.zeros((2, 32, 32, 3), dtype=np.float32)
    np.testing.assert_array_equal(read.logits(read.params, image), net.logits(net.params, image))
    np.savez(tmp_path / "other.npz", weight0=np.zeros((3, 2)), offset0=np.zeros(2))
    with pytest.raises(ValueError, match="are those of no network here"):
        image_networks.of_file(tmp_path / "other.npz")
    np.savez(tmp_path / "named.npz", kernel=np.zeros(3))
    with pytest.raises(ValueError, match="weight0, offset0, weight1"):
        image_networks.of_file(tmp_path / "named.npz")


def test_the_command_says_what_it_needs(capsys):
    assert main(["reproduce", "section5.2", "--quick"]) == 2
    assert "--images" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--rounds", "--replicates"])
def test_numbers_of_the_command_are_checked(option, images, capsys, monkeypatch):
    monkeypatch.setattr(ad.datasets, "mnist", lambda folder: images)
    assert main(["reproduce", "section5.2", "--quick", "--images", ".", option, "0"]) == 2
    assert f"{option} is 0; it must be at least 1" in capsys.readouterr().err


def test_cifar10_files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(1)
    pixels = rng.integers(256, size=(4, 1024, 3)).astype(np.uint8)
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        image.fromarray(pixels).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text(str(list(range(10)) * 2))
    (tmp_path / "test_lables.json").write_text("[1, 2, 3, 4]")
    read = ad.datasets.cifar10(tmp_path)
    assert read.X.shape == (20, 3072)
    np.testing.assert_allclose(read.test_images[2].reshape(1024, 3), pixels[2] / 255.0, atol=1e-7)
    (tmp_path / "test_lables.json").write_text("[1, 2, 3]")
    with pytest.raises(ValueError, match="3 classes for 4 images"):
        ad.datasets.cifar10(tmp_path)
