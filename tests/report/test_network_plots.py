"""Pictures of networks and their spectra."""

import sys

import matplotlib as mpl
import numpy as np
import pytest
from known_networks import absorbing, cycle, karate, ring

import adfl_stats as ad

mpl.use("Agg")

# ------------------------------------------------------------------ pictures


@pytest.mark.parametrize(
    "net",
    [ad.networks.directed_circle(100, 5), karate(), absorbing(), ad.networks.fixed_degree(60, 3, seed=2), cycle(3)],
    ids=str,
)
def test_pictures(net):
    from matplotlib import pyplot

    axes = [ad.plots.network(net), ad.plots.spectrum(net)]
    assert f"{net.n_clients} clients" in axes[0].get_title()
    assert f"second modulus {net.second_eigenvalue:.4g}" in axes[1].get_title()
    # Every client is a point, and every eigenvalue.
    for ax in axes:
        assert sum(len(points.get_offsets()) for points in ax.collections if len(points.get_offsets()) > 1) >= (
            net.n_clients - 1
        )
        ax.figure.canvas.draw()
        pyplot.close(ax.figure)


@pytest.mark.parametrize("draw", [ad.plots.network, ad.plots.spectrum])
@pytest.mark.parametrize("given", [np.eye(3), None], ids=lambda given: type(given).__name__)
def test_pictures_want_a_network(draw, given):
    with pytest.raises(
        TypeError, match=rf"net is a {type(given).__name__}; build a Network with Network.from_adjacency"
    ):
        draw(given)


def test_network_is_drawn_on_the_axes_given():
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert ad.plots.network(ring(5), ax=ax) is ax
    assert ad.plots.spectrum(ring(5), ax=ax) is ax


def test_network_is_drawn_without_networkx(monkeypatch):
    from matplotlib.figure import Figure

    net = karate()
    monkeypatch.setitem(sys.modules, "networkx", None)
    ad.plots.network(net, ax=Figure().subplots())


def test_pictures_that_would_be_black():
    with pytest.raises(ValueError, match=r"net has 2001 clients; a drawing shows at most 2000\. Use check_network"):
        ad.plots.network(ad.networks.directed_circle(2001, 2))
    with pytest.raises(ValueError, match=r"net has 1001 clients; all eigenvalues are drawn for at most 1000\. Use"):
        ad.plots.spectrum(ad.networks.directed_circle(1001, 2))
