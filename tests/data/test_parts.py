"""`ClientData(...)` built directly checks its parts: what the kernel would read beyond its memory is refused."""

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest

import adfl_stats as ad


def parts(**changes):
    rng = np.random.default_rng(0)
    found = {
        "X": rng.normal(size=(6, 2)),
        "y": rng.normal(size=6),
        "offsets": np.array([0, 2, 4, 6]),
        "labels": pd.Index(list("abc")),
        "names": ["x1", "x2"],
    }
    return {**found, **changes}


BAD = {
    "client without rows": ({"offsets": np.array([0, 2, 2, 6])}, "after entry 1: client 1 has no rows"),
    "rows beyond": ({"offsets": np.array([0, 2, 4, 2**40])}, "offsets runs from 0 to 1099511627776; wanted is from 0"),
    "rows before": ({"offsets": np.array([-2, 2, 4, 6])}, "offsets runs from -2"),
    "falls": ({"offsets": np.array([0, 5, 4, 6])}, "after entry 1"),
    "few offsets": ({"offsets": np.array([0, 6])}, "offsets must be an array of int64 with 4 entries"),
    "float offsets": ({"offsets": np.array([0.0, 2, 4, 6])}, "found float64"),
    "no rows": ({"X": np.empty((0, 2)), "y": np.empty(0)}, r"X has shape \(0, 2\)"),
    "NaN": ({"X": np.full((6, 2), np.nan)}, "X has NaN or infinite values; the first is nan in row 0"),
    "infinite y": ({"y": np.full(6, np.inf)}, "y has NaN or infinite"),
    "list": ({"y": [1.0] * 6}, "y is a list; wanted is a plain array of float64"),
    "integers": ({"y": np.ones(6, int)}, "y is a int64 of shape"),
    "masked": ({"y": np.ma.masked_equal(np.ones(6), 1.0)}, "y is a float64 of shape"),
    "strides": ({"X": np.ones((6, 4))[:, ::2]}, "in C order"),
    "few y": ({"y": np.ones(5)}, "y has 5 entries, X has 6 rows"),
    "few linear offsets": ({"linear_offset": np.ones(5)}, "linear_offset has 5 entries"),
    "negative weights": ({"row_weights": -np.ones(6)}, "row_weights has negative numbers"),
    "labels": ({"labels": pd.Index(list("aba"))}, "labels names clients twice or not at all: 'a'"),
    "list of labels": ({"labels": list("abc")}, "labels is a list; pass a pandas Index"),
    "names": ({"names": ["x", "x"]}, "names has 1 distinct entries for 2 columns of X"),
    "mask": ({"set_aside": np.zeros(2, bool)}, "set_aside must be a mask with one entry a client"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_parts_are_refused_by_name(kind):
    changes, words = BAD[kind]
    with pytest.raises((TypeError, ValueError), match=words):
        ad.ClientData(**parts(**changes))
    good = ad.ClientData(**parts())
    with pytest.raises((TypeError, ValueError), match=words):
        replace(good, **changes)


def test_good_parts_fit_as_those_of_arrays():
    built = ad.ClientData(**parts(linear_offset=np.ones(6), row_weights=np.full(6, 2.0)))
    wanted = ad.ClientData.from_arrays(built.X, built.y, list("aabbcc"), offset=np.ones(6), weights=np.full(6, 2.0))
    for field in fields(ad.ClientData):
        np.testing.assert_array_equal(getattr(built, field.name), getattr(wanted, field.name), err_msg=field.name)
