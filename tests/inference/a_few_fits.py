"""Fits of several families, for tests of results."""

import numpy as np
import pandas as pd

import adfl_stats as ad


def grades(frame):
    """A response of three ordered words that depends on the covariates."""
    noise = np.random.default_rng(11).logistic(size=len(frame))
    words = np.array(["low", "middle", "high"])[np.digitize(frame["x1"] + noise, [-0.7, 0.7])]
    return pd.Categorical(words, ["low", "middle", "high"])


def named_fit(frame, network, logistic):
    model = ad.DecentralizedGLM.from_formula("y ~ x1 + x2 + x3", frame, "client", network, "binomial")
    return model.fit(heterogeneity="estimate")


def numbered_fit(frame, network, logistic):
    data = ad.ClientData.from_arrays(logistic.X, logistic.X[:, 1] + logistic.y, logistic.client, weights=1 + logistic.y)
    return ad.DecentralizedGLM(data, ad.networks.complete(8)).fit(ad.DFL(), step=0.1, rounds=50)


def multinomial_fit(frame, network, logistic):
    model = ad.DecentralizedGLM.from_formula(
        "z ~ x1 + x2", frame.assign(z=grades(frame)), "client", network, "multinomial"
    )
    return model.fit(ad.ADFL(lam=0.5, stages=1), heterogeneity="none")


def counted_fit(frame, network, logistic):
    data = ad.ClientData.from_arrays(logistic.X, logistic.y, frame["client"], exposure=np.ones(len(frame)) * 2)
    return ad.DecentralizedGLM(data, network, "negativebinomial", weighting="client").fit(ad.Bridge(), rounds=30)


FITS = {"names": named_fit, "numbers": numbered_fit, "multinomial": multinomial_fit, "negative binomial": counted_fit}
