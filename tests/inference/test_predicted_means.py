"""Means at new rows need no standard errors."""

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose
from scipy import special

import adfl_stats as ad
from adfl_stats.inference import coefficients


def test_means_of_classes_without_inference(monkeypatch):
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(600), rng.standard_normal(600)])
    logits = np.column_stack([np.zeros(600), X @ [0.3, 1.0], X @ [-0.2, -0.5]])
    y = (special.softmax(logits, axis=1).cumsum(axis=1) > rng.uniform(size=(600, 1))).argmax(axis=1)
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(6), 100))
    res = ad.DecentralizedGLM(data, ad.networks.complete(6), "multinomial").fit(ad.DFL())
    new = np.column_stack([np.ones(4), [-1.0, 0.0, 1.0, 2.0]])

    def asked(*_):
        raise AssertionError("predict asks for standard errors")

    with monkeypatch.context() as patch:
        patch.setattr(coefficients.Inference, "of", asked)
        means = res.predict(new)
    eta = np.column_stack([np.zeros(4), new @ res.params.to_numpy().reshape(2, 2).T])
    assert_allclose(means, special.softmax(eta, axis=1), rtol=1e-12)
    pd.testing.assert_frame_equal(means, res.get_prediction(new).predicted_mean)
