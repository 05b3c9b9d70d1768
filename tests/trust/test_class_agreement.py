"""Clients that label alike, found by class means."""

import numpy as np
import pytest

import adfl_stats as ad

CLASSES, Q = 6, 12


def shards(seed, M=12, n=80, held=2, wrong=0.25, corrupt="labels"):
    """Clients with a few classes each, of which some count backwards or have other features."""
    rng = np.random.default_rng(seed)
    centres = 1.5 * rng.normal(size=(CLASSES, Q))
    bad = np.zeros(M, dtype=bool)
    bad[rng.choice(M, round(wrong * M), replace=False)] = True
    features, classes = [], []
    for m in range(M):
        y = rng.choice(rng.choice(CLASSES, held, replace=False), n)
        x = centres[y] + rng.normal(size=(n, Q))
        features.append(x + 1.0 if bad[m] and corrupt == "features" else x)
        classes.append(CLASSES - 1 - y if bad[m] and corrupt == "labels" else y)
    return features, classes, bad


@pytest.mark.parametrize("corrupt", ["labels", "features"])
@pytest.mark.parametrize("held", [2, CLASSES])
def test_the_majority_is_found(held, corrupt):
    for seed in range(5):
        features, classes, bad = shards(seed, held=held, corrupt=corrupt, n=60 * held)
        found = ad.class_agreement(features, classes)
        assert (found.weights == ~bad).mean() >= (0.9 if held == 2 else 1.0)


def test_the_level_is_kept():
    """Clients that label alike: at most a few of a hundred data sets have any conflict at level .05."""
    conflicts = 0
    for seed in range(100):
        features, classes, _ = shards(seed, M=8, held=CLASSES, wrong=0.0, n=150)
        conflicts += bool(ad.class_agreement(features, classes, level=0.05).conflicts.any())
    assert conflicts <= 12


def test_ratios_are_those_by_hand():
    features, classes, _ = shards(3, M=4, held=3, wrong=0.0)
    found = ad.class_agreement(features, classes).compared
    line = found[(found["class"] == found["other class"])].iloc[0]
    a, b = (features[int(line[who])][classes[int(line[who])] == line["class"]] for who in ("client", "other"))
    expected = a.var(axis=0, ddof=1).sum() / len(a) + b.var(axis=0, ddof=1).sum() / len(b)
    np.testing.assert_allclose(line["ratio"], ((a.mean(axis=0) - b.mean(axis=0)) ** 2).sum() / expected, rtol=1e-9)


def test_bad_input():
    with pytest.raises(ValueError, match="an entry for each client"):
        ad.class_agreement([np.ones((20, 2))], [np.ones(19)])
    with pytest.raises(ValueError, match="no client has 10 rows of a class"):
        ad.class_agreement([np.ones((5, 2))], [np.arange(5)])
    with pytest.raises(ValueError, match="level"):
        ad.class_agreement([np.ones((20, 2))], [np.ones(20)], level=0.0)


def test_small_p_values_are_those_in_closed_form():
    """Covariances with eigenvalues in pairs: the squared distance is a sum of exponential variables."""
    values, n = np.repeat([1.0, 0.3, 0.1], 2), 12
    axes = np.diag(np.sqrt(0.5 * values * (n - 1.0)))
    rows = np.concatenate([axes, -axes])
    np.testing.assert_allclose(np.cov(rows.T), np.diag(values), atol=1e-12)
    means = 2.0 * values[::2] * 2.0 / n
    shares = [np.prod([mean / (mean - other) for other in means if other != mean]) for mean in means]
    for distance, wanted in ((1.8, 1e-2), (5.8, 1e-7)):
        shifted = rows + np.sqrt(distance) * np.eye(6)[1]
        exact = np.dot(shares, np.exp(-distance / means))
        assert 0.2 < exact / wanted < 5.0
        found = ad.class_agreement([rows, shifted], [np.zeros(n), np.zeros(n)]).compared["p"].item()
        np.testing.assert_allclose(np.log(found), np.log(exact), rtol=0.07)


def test_a_chain_of_agreements_decides_where_conflicts_alone_do_not():
    """Every client holds two classes: conflicts of two lone pairs are symmetric, who agrees with whom is not."""
    rng = np.random.default_rng(5)
    held = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (1, 3)]
    centres = 3.0 * rng.normal(size=(5, Q))
    features, classes = [], []
    for m, two in enumerate(held):
        y = np.repeat(two, 40)
        features.append(centres[y] + rng.normal(size=(80, Q)) + 2.0 * (m >= 4))
        classes.append(y)
    assert ad.class_agreement(features, classes).weights.tolist() == [1.0] * 4 + [0.0] * 3


def test_the_kept_are_the_best_of_all_subsets():
    from adfl_stats.trust.class_agreement import PARTED, _kept

    rng = np.random.default_rng(2)
    for _ in range(30):
        upper = np.triu(rng.choice(3, size=(7, 7), p=[0.5, 0.25, 0.25]), 1)
        relation = upper + upper.T
        conflicts, agreements = (relation == 1).astype(int), (relation == 2).astype(int)

        def worth(kept, conflicts=conflicts, agreements=agreements):
            if conflicts[np.ix_(kept, kept)].any():
                return -np.inf
            return kept.sum() - PARTED * agreements[np.ix_(kept, ~kept)].sum()

        subsets = (np.array([k >> m & 1 for m in range(7)], dtype=bool) for k in range(2**7))
        np.testing.assert_allclose(worth(_kept(conflicts, agreements)), max(map(worth, subsets)))
