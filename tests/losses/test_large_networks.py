"""Parameters by the million: names that are made when they are asked for, and state in single precision."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats._algebra import BLOCK, row_squares, squares_about
from adfl_stats.losses.entry_names import EntryNames, all_distinct, block_of

M = 8
NET = ad.networks.directed_circle(M, 2)


def means(P, **parts):
    """Losses whose gradients are theta less numbers of the client."""

    def gradient(m, theta, rng):
        found = theta - np.float32(m)
        return found.astype(np.float32)

    return ad.Losses(gradient, np.full(M, 10.0), np.zeros(P), precision="float32", **parts)


def test_names_are_those_of_a_list():
    names = EntryNames([block_of("a", (2, 3)), block_of("b", ()), block_of("none", (0,)), block_of("c", (2,))])
    wanted = [*(f"a[{i}, {j}]" for i in range(2) for j in range(3)), "b", "c[0]", "c[1]"]
    assert list(names) == [names[k] for k in range(len(names))] == wanted
    assert names[2:8:2] == wanted[2:8:2]
    assert names[-3] == wanted[-3]
    assert names == wanted
    assert names != wanted[:-1]
    assert names != EntryNames(names.blocks[:-1])
    with pytest.raises(IndexError):
        names[len(names)]


def test_names_given_twice():
    assert all_distinct(EntryNames([block_of("a", (2,)), block_of("b", (2,))]))
    assert not all_distinct(EntryNames([block_of("a", (2,)), block_of("a", (1,))]))
    # The name of a single number may be that of another array's entry.
    assert not all_distinct(EntryNames([block_of("a", (2,)), block_of("a[1]", ())]))
    assert all_distinct(EntryNames([block_of("a", (2,)), block_of("a[2]", ())]))
    twice = EntryNames([block_of("a", (2,)), block_of("a", (1,))])
    with pytest.raises(ValueError, match="needs a name of its own"):
        ad.DecentralizedModel(means(3, names=twice), NET)


def test_differences_by_blocks():
    rng = np.random.default_rng(1)
    for shape in ((5, 7), (5, BLOCK // 3)):
        values, centre = rng.normal(size=shape), rng.normal(size=shape[1])
        assert_allclose(row_squares(values, centre), ((values - centre) ** 2).sum(axis=1), rtol=1e-13)
        assert_allclose(row_squares(values, values[::-1]), ((values - values[::-1]) ** 2).sum(axis=1), rtol=1e-13)
        assert_allclose(squares_about(values, centre), ((values - centre) ** 2).sum(axis=0), rtol=1e-13)


def test_memory_is_a_few_copies_of_the_estimates():
    P = 300_000
    copy = M * P * 4
    tracemalloc.start()
    try:
        model = ad.DecentralizedModel(means(P), NET)
        res = model.fit(step=0.5, rounds=3, lines=1)
        summary = str(res.summary())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Start, state, combination, gradients and steps.
    assert peak < 5.6 * copy
    assert "_index" not in vars(res)
    assert f"first 50 of {P} parameters" in summary
    assert "p49" in summary


def test_files_keep_no_list_of_names(tmp_path):
    res = ad.DecentralizedModel(means(60), NET).fit(step=0.5, rounds=3)
    res.save(tmp_path / "fit.npz")
    again = ad.load(tmp_path / "fit.npz")
    assert isinstance(again.record.names, EntryNames)
    assert again.params.equals(res.params)
    assert list(again.params.index) == [f"p{k}" for k in range(60)]
    assert str(again.summary()) == str(res.summary())


def test_pages_list_the_first_parameters(tmp_path):
    res = ad.DecentralizedModel(means(60), NET).fit(step=0.5, rounds=3)
    text = res.report(tmp_path / "fit.html").read_text()
    assert ">p49<" in text
    assert ">p50<" not in text


def test_single_precision_is_near_double():
    rng = np.random.default_rng(2)
    y = rng.normal(size=(M, 40))
    res = {
        kind: ad.DecentralizedModel(
            ad.Losses(lambda m, t, g: t - y[m], np.arange(1.0, M + 1), np.zeros(40), precision=kind), NET
        ).fit(ad.DFL(local_steps=2, clip=4.0), step=0.1, rounds=30)
        for kind in ("float32", "float64")
    }
    assert res["float32"].record.theta.dtype == np.float32
    assert_allclose(res["float32"].params, res["float64"].params, atol=2e-6)


def test_starts_by_name_take_any_order():
    losses = means(3)
    model = ad.DecentralizedModel(losses, NET)
    given = ad.DecentralizedModel(losses, NET).fit(step=0.5, rounds=3).params
    first = model.fit(ad.DFL(init=given[::-1]), step=0.5, rounds=2)
    assert_array_equal(first.params, model.fit(ad.DFL(init=given.to_numpy()), step=0.5, rounds=2).params)
