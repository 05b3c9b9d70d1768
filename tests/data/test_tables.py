"""Tables of other packages, nullable columns, values beside the frame, functions and offsets in formulas."""

import copy
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad

polars = pytest.importorskip("polars")
FACTOR = 2.5


def square(values):
    return values**2


@pytest.fixture(scope="module")
def stays():
    """Counts with an exposure at four sites, in plain pandas dtypes; tests must not change it."""
    rng = np.random.default_rng(4)
    n = 160
    frame = pd.DataFrame(
        {
            "site": np.repeat(["b", "a", "d", "c"], n // 4),
            "x": rng.normal(size=n),
            "age": rng.integers(20, 80, n),
            "arm": rng.choice(["old", "new"], n),
            "days": rng.uniform(1.0, 9.0, n),
            "smoker": rng.random(n) < 0.4,
            "my weight": rng.uniform(0.5, 2.0, n),
        }
    )
    mean = frame["days"] * np.exp(0.3 * frame["x"] + 0.2 * (frame["arm"] == "old"))
    frame["count"] = rng.poisson(mean).astype(float)
    return frame


FORMULA = "count ~ x + age + C(arm) + smoker"


def converted(kind, frame):
    if kind == "polars":
        return polars.from_pandas(frame)
    if kind == "lazy":
        return polars.from_pandas(frame).lazy()
    if kind == "polars categories":
        return polars.from_pandas(frame).with_columns(polars.col("arm", "site").cast(polars.Categorical))
    if kind == "arrow":
        return pa.Table.from_pandas(frame)
    if kind == "batch":
        return pa.RecordBatch.from_pandas(frame)
    if kind == "nullable":
        return frame.convert_dtypes()
    if kind == "string":
        return frame.astype({"arm": "string", "site": "string"})
    return frame.convert_dtypes(dtype_backend="pyarrow")


KINDS = ["polars", "lazy", "polars categories", "arrow", "batch", "nullable", "string", "arrow dtypes"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_gives_the_same_data(stays, kind):
    wanted = ad.ClientData.from_frame(stays, FORMULA, "site", exposure="days", weights="my weight")
    data = ad.ClientData.from_frame(converted(kind, stays), FORMULA, "site", exposure="days", weights="my weight")
    assert data.names == wanted.names == ["Intercept", "x", "age", "C(arm)[T.old]", "smoker"]
    for name in ("X", "y", "linear_offset", "row_weights", "offsets"):
        np.testing.assert_array_equal(getattr(data, name), getattr(wanted, name))
    assert list(data.labels) == ["b", "a", "d", "c"]
    assert (data.y_name, data.client_name) == ("count", "site")


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_take_every_kind_of_table(stays, kind):
    net = ad.networks.complete(4, labels=list("abcd"))
    res = ad.DecentralizedGLM.from_formula(FORMULA, stays, "site", net, "poisson").fit()
    wanted, found = res.predict(stays), res.predict(converted(kind, stays))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["polars", "nullable", "arrow dtypes"])
def test_missing_values_are_missing_in_every_kind_of_table(stays, kind):
    holed = stays.convert_dtypes()
    holed.loc[[3, 80], "age"] = pd.NA
    holed.loc[[3, 81], "arm"] = pd.NA
    table = polars.from_pandas(holed) if kind == "polars" else holed
    table = holed.convert_dtypes(dtype_backend="pyarrow") if kind == "arrow dtypes" else table
    with pytest.raises(ValueError, match=r"missing values \(NaN\) in 'age' \(2\), 'arm' \(2\): 3 rows"):
        ad.ClientData.from_frame(table, FORMULA, "site")
    data = ad.ClientData.from_frame(table, FORMULA, "site", missing="drop")
    wanted = ad.ClientData.from_frame(stays.drop(index=[3, 80, 81]), FORMULA, "site")
    np.testing.assert_array_equal(data.X, wanted.X)
    assert data.n_dropped == 3


@pytest.mark.parametrize("kind", ["polars", "arrow"])
def test_design_matrices_of_other_packages(stays, kind):
    X = stays[["x", "age"]]
    data = ad.ClientData.from_arrays(converted(kind, X), stays["count"].to_numpy(), stays["site"].to_numpy())
    assert data.names == ["x", "age"]
    np.testing.assert_array_equal(data.X, X)


def test_what_is_no_table_is_refused():
    with pytest.raises(TypeError, match="frame is a dict; pass a pandas, polars or Arrow table"):
        ad.ClientData.from_frame({"y": [1.0]}, "y ~ 1", "site")
    with pytest.raises(TypeError, match="formula is a list; write it as text"):
        ad.ClientData.from_frame([1.0], ["y ~ 1"], "site")


def test_frame_and_formula_may_change_places(stays):
    net = ad.networks.complete(4, labels=list("abcd"))
    one, other = (ad.ClientData.from_frame(*pair, "site") for pair in ((stays, FORMULA), (FORMULA, stays)))
    np.testing.assert_array_equal(one.X, other.X)
    build = ad.DecentralizedGLM.from_formula
    models = [
        build(FORMULA, stays, "site", net),
        build(stays, FORMULA, "site", net),
        build(FORMULA, data=stays, client="site", network=net),
    ]
    models += [
        ad.DecentralizedGLM(held, net)
        for held in (
            ad.ClientData.from_frame(data=stays, formula=FORMULA, client="site"),
            ad.ClientData.from_frame(FORMULA, data=stays, client="site"),
        )
    ]
    assert len({model.data.X.tobytes() for model in models}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"formula": "y ~ x"}, "from_frame takes the rows once, as frame or as data, which are the same; got neither"),
        ({"frame": 1, "data": 1, "formula": "y ~ x"}, "got both"),
        ({"data": 1, "client": "site"}, "from_frame lacks formula; give one such as 'y ~"),
        ({"data": 1, "formula": "y ~ x"}, r"from_frame lacks client; call from_frame\(frame, formula, client\)"),
    ],
)
def test_arguments_of_from_frame_that_lack_are_named(arguments, message):
    with pytest.raises(TypeError, match=message):
        ad.ClientData.from_frame(**arguments)


@pytest.mark.parametrize("formula", ["count ~ .", "count ~ . - x", "count ~ x + .:age", ". ~ x", "count ~ .^2"])
def test_a_wildcard_is_refused_in_one_sentence(stays, formula):
    with pytest.raises(ValueError, match=r"'\.' for all other columns is not supported\. Name the columns") as error:
        ad.ClientData.from_frame(stays, formula, "site")
    assert repr(formula) in str(error.value)
    assert len(str(error.value)) < 150


@pytest.mark.parametrize("where", ["client", "formula", "prediction"])
@pytest.mark.parametrize("levels", ["arm", ["days", "arm"]])
def test_names_in_the_index_are_told_from_columns(stays, levels, where):
    inside, net = stays.set_index(levels), ad.networks.complete(4, labels=list("abcd"))
    calls = {
        "client": lambda: ad.ClientData.from_frame(inside, "count ~ x", "arm"),
        "formula": lambda: ad.ClientData.from_frame(inside, "count ~ C(arm)", "site"),
        "prediction": lambda: ad.DecentralizedGLM.from_formula("x ~ arm", stays, "site", net).fit().predict(inside),
    }
    with pytest.raises(ValueError, match=r"'arm' is in the index of .*; pass (frame|X)\.reset_index\(\)"):
        calls[where]()


@pytest.mark.parametrize("formula", ["count ~ arm", "count ~ x * C(arm)", "count ~ C(site) + arm - 1"])
def test_a_factor_with_a_single_level_is_named(stays, tmp_path, formula):
    frame = stays.assign(arm="old")
    with pytest.raises(ValueError, match="'arm' has the single level 'old' in the rows of the frame, and a factor ne"):
        ad.ClientData.from_frame(frame, formula, "site")
    frame.to_parquet(tmp_path / "stays.parquet")
    with pytest.raises(ValueError, match=r"'arm' has the single level 'old' in the rows of the file 'stays\.parquet'"):
        ad.ClientData.from_parquet(tmp_path / "stays.parquet", formula, "site")
    # In the place of the constant it says something.
    assert ad.ClientData.from_frame(frame, "count ~ x + arm - 1", "site").names == ["x", "arm[old]"]


@pytest.mark.parametrize(
    ("formula", "change", "words"),
    [
        ("x ~ arm + age", {"arm": "odd"}, "column 'arm' of X has the level 'odd', which .*; theirs are 'new', 'old'"),
        ("x ~ C(`arm`) * age", {"arm": "odd"}, "the column 'arm' of X has the level 'odd', which"),
        ("x ~ C(age > 50) + C(age // 40)", {"age": 200}, "X has levels of a factor that the data of the fit did not"),
    ],
)
def test_levels_that_predictions_do_not_know_are_named(stays, formula, change, words):
    net = ad.networks.complete(4, labels=list("abcd"))
    res = ad.DecentralizedGLM.from_formula(formula, stays, "site", net).fit(ad.DFL())
    with pytest.raises(ValueError, match=words):
        res.predict(stays.assign(**change))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "from_formula takes the rows once, as frame or as data, which are the same; got neither"),
        ({"frame": 1, "data": 1}, "got both"),
        ({"data": 1}, r"from_formula lacks client; call from_formula\(formula, frame, client, network\)"),
        ({"data": 1, "client": "site"}, "from_formula lacks network"),
    ],
)
def test_arguments_that_lack_are_named(arguments, message):
    with pytest.raises(TypeError, match=message):
        ad.DecentralizedGLM.from_formula("y ~ x", **arguments)


def test_columns_may_be_given_beside_the_frame(stays):
    wanted = ad.ClientData.from_frame(stays, "count ~ x", "site", offset="age", exposure="days", weights="my weight")
    data = ad.ClientData.from_frame(
        stays,
        "count ~ x",
        stays["site"],
        offset=stays["age"].to_numpy(),
        exposure=list(stays["days"]),
        weights=polars.Series(stays["my weight"]),
    )
    for name in ("X", "y", "linear_offset", "row_weights"):
        np.testing.assert_array_equal(getattr(data, name), getattr(wanted, name))
    assert data.client_name == "site"
    by_array = ad.ClientData.from_frame(stays, "count ~ x", client=stays["site"].to_numpy())
    assert by_array.client_name == "client"
    assert list(by_array.labels) == list(wanted.labels)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"client": np.arange(3)}, r"client has shape \(3,\), the frame 160 rows; name a column of the frame, or give"),
        ({"offset": np.ones((160, 2))}, r"offset has shape \(160, 2\)"),
        ({"weights": pd.Series(1.0, index=range(1, 161))}, "weights is a Series with another index than the frame"),
        ({"exposure": [np.nan, *[1.0] * 159]}, r"missing values \(NaN\) in 'exposure=' \(1\): 1 rows"),
        ({"offset": "nope"}, "the frame has no column 'nope'"),
    ],
)
def test_bad_values_beside_the_frame_are_refused(stays, roles, message):
    with pytest.raises(ValueError, match=message):
        ad.ClientData.from_frame(stays, "count ~ x", **({"client": "site"} | roles))


@pytest.mark.parametrize("column", ["x", "age"])
def test_numbers_stored_as_text_are_named(stays, column):
    text = stays.assign(**{column: stays[column].astype(str)})
    with pytest.raises(ValueError, match=f"the column '{column}' of the frame holds numbers stored as text, such as '"):
        ad.ClientData.from_frame(text, f"count ~ {column}", "site")
    with pytest.raises(ValueError, match="numbers stored as text"):
        ad.ClientData.from_frame(text, f"count ~ log({column})", "site")
    levels = ad.ClientData.from_frame(text, f"count ~ C({column})", "site").names
    assert len(levels) == text[column].nunique()


def test_a_response_of_numbers_stored_as_text_is_named(stays):
    text = stays.assign(count=stays["count"].astype(str))
    net = ad.networks.complete(4, labels=list("abcd"))
    with pytest.raises(ValueError, match=r"y holds numbers stored as text, such as '0\.0'; family 'poisson' wants"):
        ad.DecentralizedGLM.from_formula("count ~ x", text, "site", net, "poisson")
    # Codes of classes may be text.
    coded = stays.assign(smoker=stays["smoker"].map({True: "1", False: "0"}))
    assert ad.DecentralizedGLM.from_formula("smoker ~ x", coded, "site", net, "binomial").data.classes == ("0", "1")


def test_numbers_stored_as_text_in_a_file_are_named(stays, tmp_path):
    stays.assign(x=stays["x"].astype(str)).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"the column 'x' of the file 'rows\.parquet' holds numbers stored as text"):
        ad.ClientData.from_parquet(tmp_path / "rows.parquet", "count ~ x", "site")


@pytest.mark.parametrize("term", ["(1|site)", "(1 | site)", "(x || site)", "(1 + x | site)"])
def test_random_effects_are_named(stays, term):
    with pytest.raises(ValueError, match=r"random effects such as \(.*\) are not supported.*heterogeneity= of fit"):
        ad.ClientData.from_frame(stays, f"count ~ x + {term}", "site")


# ---------------------------------------------------------------------- offsets


@pytest.mark.parametrize(
    "formula", ["count ~ x + offset(log(days))", "count ~ offset(np.log(days) - 1) + x + offset(age / 100)"]
)
def test_offsets_in_formulas_agree_with_statsmodels(stays, formula):
    shift = np.log(stays["days"]) - ("age" in formula) * (1 - stays["age"] / 100)
    net = ad.networks.complete(4, labels=list("abcd"))
    model = ad.DecentralizedGLM.from_formula(formula, stays, "site", net, "poisson")
    assert model.data.names == ["Intercept", "x"]
    res = model.fit(ad.DFL(), tolerance=1e-5)
    design = sm.add_constant(stays[["x"]])
    peer = sm.GLM(stays["count"], design, sm.families.Poisson(), offset=shift).fit(tol=1e-12)
    np.testing.assert_allclose(res.params, peer.params, rtol=1e-6)
    np.testing.assert_allclose(res.predict(stays), peer.fittedvalues, rtol=1e-6)
    again = pickle.loads(pickle.dumps(res))
    np.testing.assert_array_equal(again.predict(stays), res.predict(stays))


def test_offsets_add_up(stays):
    by_formula = ad.ClientData.from_frame(stays, "count ~ offset(age)", "site", offset="x", exposure="days")
    np.testing.assert_allclose(by_formula.linear_offset, stays["age"] + stays["x"] + np.log(stays["days"]))


def test_offsets_in_formulas_of_files(stays, tmp_path):
    stays.to_parquet(tmp_path / "rows.parquet")
    formula = "count ~ x + offset(log(days)) + offset(`my weight`)"
    data = ad.ClientData.from_parquet(tmp_path / "rows.parquet", formula, "site", offset="age")
    wanted = ad.ClientData.from_frame(stays, formula, "site", offset="age")
    assert data.names == wanted.names == ["Intercept", "x"]
    np.testing.assert_array_equal(data.linear_offset, wanted.linear_offset)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("count ~ x:offset(age)", "an offset has no interactions"),
        ("count ~ offset(arm)", r"offset\(arm\) gives \d columns; one number a row|could not be computed"),
        ("count ~ offset(nope)", "the frame has no column 'nope'"),
        ("count ~ offset(log(age - 200))", "offset has NaN or infinite values"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_bad_offsets_are_refused(stays, formula, message):
    with pytest.raises(ValueError, match=message):
        ad.ClientData.from_frame(stays, formula, "site")


# ---------------------------------------------------------------------- names of the calling code


def test_functions_and_constants_of_the_calling_code(stays):
    centre = 50.0
    cut = "old"  # noqa: F841
    formula = "count ~ square(x) + I(age - centre) + I(FACTOR * x) + C(arm, Treatment(cut))"
    data = ad.ClientData.from_frame(stays, formula, "site")
    wanted = np.column_stack(
        [np.ones(160), stays["x"] ** 2, stays["age"] - 50.0, 2.5 * stays["x"], stays["arm"] == "new"]
    )
    np.testing.assert_allclose(data.X[:, np.argsort(_order(data.names))], wanted)
    assert set(data.formula.names) == {"square", "centre", "FACTOR", "cut"}
    # They go with the model: a later change of the constant does not reach it.
    net = ad.networks.complete(4, labels=list("abcd"))
    model = ad.DecentralizedGLM.from_formula("count ~ square(x) + I(age - centre)", stays, "site", net)
    res = model.fit()
    before = res.predict(stays)
    centre = 0.0
    pd.testing.assert_series_equal(res.predict(stays), before)
    assert centre == 0.0
    copied = pickle.loads(pickle.dumps(res))
    with pytest.raises(ValueError, match="the formula calls 'square', a function of the code that made the model"):
        copied.predict(stays[["x", "age"]].assign(centre=1.0))
    design = pd.DataFrame(model.data.X, columns=model.data.names)
    np.testing.assert_array_equal(copied.predict(design), before)
    assert copy.copy(data.formula).text == formula


def _order(names):
    marks = ("Intercept", "square", "I(age", "I(FACTOR", "C(arm")
    return [next(k for k, mark in enumerate(marks) if name.startswith(mark)) for name in names]


def test_modules_of_the_calling_code(stays):
    from scipy import special

    data = ad.ClientData.from_frame(stays, "count ~ special.expit(x)", "site")
    np.testing.assert_allclose(data.X[:, 1], special.expit(stays["x"]))


def test_names_of_the_calling_code_never_stand_for_columns(stays):
    z = np.arange(160.0)
    with pytest.raises(ValueError, match="the frame has no column 'z'"):
        ad.ClientData.from_frame(stays, "count ~ z", "site")
    with pytest.raises(ValueError, match="the frame has no column 'z'"):
        ad.ClientData.from_frame(stays, "count ~ I(2 * z)", "site")
    x = 3.0
    assert ad.ClientData.from_frame(stays, "count ~ I(x - 1)", "site").X[0, 1] == stays["x"].iloc[0] - 1
    assert (len(z), x) == (160, 3.0)


def test_functions_that_nobody_has_defined_are_named(stays, tmp_path):
    with pytest.raises(ValueError, match=r"it calls 'cube', which formulas do not know .* Define the function first"):
        ad.ClientData.from_frame(stays, "count ~ cube(x)", "site")
    stays.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="it calls 'square', which formulas do not know"):
        ad.ClientData.from_parquet(tmp_path / "rows.parquet", "count ~ square(x)", "site")


def test_terms_that_cannot_be_computed_are_named(stays):
    with pytest.raises(ValueError, match=r"formula is 'count ~ log\(arm\)'; it cannot be computed on the frame: .*log"):
        ad.ClientData.from_frame(stays, "count ~ log(arm)", "site")


def test_rows_with_holes_inside_of_transforms_are_seen(stays):
    holed = stays.assign(x=stays["x"].mask(stays.index == 7))
    with pytest.raises(ValueError, match=r"missing values \(NaN\) in 'x' \(1\)"):
        ad.ClientData.from_frame(holed, "count ~ center(x)", "site")
    assert ad.ClientData.from_frame(holed, "count ~ poly(x, 2)", "site", missing="drop").n_dropped == 1


def test_columns_with_any_name(stays):
    data = ad.ClientData.from_frame(stays, 'count ~ `my weight` + I(2 * `my weight`) + log(Q("my weight"))', "site")
    np.testing.assert_allclose(data.X[:, 3], np.log(stays["my weight"]))


def test_columns_with_the_names_of_functions():
    """`type`, `sum` and `scale` are columns where the table has them, and functions where it does not."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"y": rng.normal(size=60), "type": rng.integers(1, 4, 60), "sum": rng.normal(size=60) ** 2})
    frame = frame.assign(site=np.repeat(list("abc"), 20), level=frame["type"], total=frame["sum"])
    net = ad.networks.complete(3, labels=list("abc"))
    hiding = ad.DecentralizedGLM.from_formula("y ~ C(type) + np.log(sum)", frame, client="site", network=net)
    plain = ad.DecentralizedGLM.from_formula("y ~ C(level) + np.log(total)", frame, client="site", network=net)
    assert_array_equal(hiding.data.X, plain.data.X)
    res, new = hiding.fit(ad.DFL()), frame.head(5)
    assert_allclose(res.predict(new), plain.fit(ad.DFL()).predict(new))
    with pytest.raises(ValueError, match="X lacks the formula's variables 'sum'; its columns are"):
        res.predict(new.drop(columns="sum"))
    with pytest.raises(ValueError, match="no column 'absent'"):
        ad.DecentralizedGLM.from_formula("y ~ C(absent)", frame, client="site", network=net)
