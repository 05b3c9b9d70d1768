"""Draw the images of docs/plots.md:  python docs/plots.py  (about a minute)."""

import warnings
from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot

import adfl_stats as ad

IMAGES = Path(__file__).parent / "images"
FORMULA = "readmitted ~ age + severity + comorbid + treated"


def pictures():
    """Yield (name, axes) of every plot."""
    sim = ad.simulate.hospitals(seed=1, M=40, abnormal=8)
    net = ad.networks.small_world(40, 6, 0.2, seed=1, labels=sim.labels)
    model = ad.DecentralizedGLM.from_formula(FORMULA, sim.frame(), "hospital", net, "binomial")
    res = model.fit()
    rounds = model.fit(ad.DFL(), step=0.02, rounds=400)
    rates = model.rates(rounds)
    truth = {"Intercept": 0.0, **dict(zip(sim.names, sim.theta0, strict=True))}
    fits = [res, model.fit(ad.DFL()), model.fit(ad.Bridge("median"), step=0.3, rounds=400)]
    yield "clients", ad.plots.clients(res)
    yield "screening", ad.plots.screening(ad.screen(res))
    yield "heterogeneity", ad.plots.heterogeneity(res.heterogeneity(), "severity")
    yield "coefficients", ad.plots.coefficients(fits, theta0=truth)
    yield "sensitivity", ad.plots.sensitivity(res.sensitivity(), "severity")
    yield "bootstrap", ad.plots.bootstrap(res.bootstrap(200), "severity")
    yield "network", ad.plots.network(net)
    yield "spectrum", ad.plots.spectrum(net)
    yield "convergence", ad.plots.convergence(rates)
    yield "rates", ad.plots.rates(rates)
    yield "trace", ad.plots.trace(rounds)
    yield "lambda_path", ad.plots.lambda_path(model.fit(ad.ADFL(lam="cv")))
    yield from study_pictures()


def study_pictures():
    """Yield (name, axes) of the plots of a study."""
    study = ad.Study(
        ["fit", "DFL", "BRIDGE-M", "ClippedGossip"],
        ["circle-5", "complete"],
        corruptions=["BF", "MP"],
        shares=[0.0, 0.1, 0.2, 0.3, 0.4],
        sizes={"M": 30, "n": 50, "p": 5},
        replicates=4,
        inference=False,
    ).run()
    yield "study_curves", ad.plots.study_curves(study, where={"network": "circle-5", "corruption": "BF"})
    yield "efficiency_map", ad.plots.efficiency_map(study, "BRIDGE-M")


def main():
    """Write the images."""
    warnings.simplefilter("ignore", ad.AdflWarning)
    IMAGES.mkdir(exist_ok=True)
    # The same bytes from the same numbers, and text that can be searched.
    with pyplot.rc_context({"svg.hashsalt": "adfl", "svg.fonttype": "none"}):
        for name, ax in pictures():
            ax.figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})
            pyplot.close(ax.figure)


if __name__ == "__main__":
    main()
