"""Plots on the page of a fit: coefficients, clients, deviations, the run, the path of lambda."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adfl_stats._text import number
from adfl_stats._types import Array
from adfl_stats.report.pages.charts import Axis, Plot
from adfl_stats.report.pages.drawing import CLASSES, classes_of
from adfl_stats.report.pages.markup import Html

if TYPE_CHECKING:
    from adfl_stats.inference.estimates import Estimates
    from adfl_stats.inference.heterogeneity import Heterogeneity
    from adfl_stats.inference.results import Results

__all__ = ["deviation_chart", "error_chart", "forest_chart", "lambda_chart", "run_chart", "score_chart"]

# More rows than a page can show one below the other.
MOST_ROWS = 60


def forest_chart(estimates: pd.DataFrame, level: str) -> Html:
    """Return estimates with their intervals, and with those for a new client where the frame has them.

    Parameters
    ----------
    estimates : DataFrame
        Columns estimate, lower, upper, perhaps "new client, lower" and "new client, upper".
    level : str
        Of the intervals, "95 %".
    """
    shown = estimates.iloc[:MOST_ROWS]
    names, place = [str(name) for name in shown.index], np.arange(len(shown))
    new = [name for name in shown.columns if name.startswith("new client")]
    known = shown[["estimate", "lower", "upper", *new]].to_numpy(dtype=float)
    y = Axis(-0.6, len(names) - 0.4, "", names=names)
    plot = Plot(Axis.of(np.append(known, 0.0), "coefficient"), y, 76 + 26 * len(names), 560)
    plot.rule(x=0.0)
    low, high, middle = (shown[name].to_numpy(dtype=float) for name in ("lower", "upper", "estimate"))
    if new:
        a, b = (shown[name].to_numpy(dtype=float) for name in new)
        plot.bars(a, b, place, "quiet dotted", f"{level} interval for a new client")
    plot.bars(low, high, place, "good", f"{level} confidence interval")
    tips = [
        f"{name}: {number(m)}\n{level} from {number(a)} to {number(b)}"
        for name, m, a, b in zip(names, middle, low, high, strict=True)
    ]
    plot.points(middle, place, "w4", tips, size=4.2, label="estimate")
    left = "" if len(shown) == len(estimates) else f" The first {len(shown)} of {len(estimates)}."
    words = f"Estimates with {level} confidence intervals; the table has the numbers.{left}"
    return plot.figure("coefficient-plot", "Coefficients.", words)


def score_chart(res: Results) -> Html:
    """Return the clients' score statistics in order, beside what clients that follow the model have."""
    fit, clients = res.record, res.record.clients
    order = np.argsort(clients.statistics, kind="stable")
    height = np.sqrt(clients.statistics[order])
    limit = np.sqrt(clients.quantile(0.95)[order])
    finite = height[np.isfinite(height)]
    top = float(max(finite.max(initial=1.0), limit.max(initial=1.0)))
    # A few clients far off would press the others into a line: beyond twenty times the limit the scale is logarithmic.
    stretched = top > 20.0 * float(np.median(limit))
    low = max(0.5 * float(finite.min(initial=1.0)), 1e-3 * top) if stretched else 0.0
    label = "root of the score statistic" + (", log scale" if stretched else "")
    y = Axis(low, 1.3 * top if stretched else 1.05 * top, label, stretched)
    plot = Plot(Axis(-1.0, float(len(order)), "clients, by score"), y, 340)
    place = np.arange(len(order))
    plot.band(place, np.full(len(order), low), limit, "", "95 % of clients that follow the model")
    kinds = classes_of(fit.weights[order])
    tips = [
        f"{name}: score {number(score)} (df {df}), p = {p:.2g}\nweight {weight:.3g}"
        for name, score, df, p, weight in zip(
            fit.labels[order], clients.statistics[order], clients.ranks[order], clients.p_values[order],
            fit.weights[order], strict=True,
        )
    ]  # fmt: skip
    # An infinite statistic stands at the upper edge.
    shown = np.where(np.isfinite(height), height, y.high)
    plot.points(place, shown, kinds, tips, clients=order.tolist(), size=3.6 if len(order) <= 300 else 2.6)
    for _, kind, text in CLASSES:
        if kind in kinds:
            plot.name(kind, f"weight {text} ({kinds.count(kind)})")
    words = "Each client's gradient at the estimate, tested against the model; a high point does not fit the majority."
    return plot.figure("score-plot", "Clients by score statistic.", words)


def deviation_chart(differences: Heterogeneity, labels: pd.Index, weights: Array) -> Html:
    """Return the clients' deviations in the coefficient with the largest spread, raw and shrunken."""
    table = differences.to_frame()
    ratio = (table["tau"] / table["client se"]).fillna(0.0)
    coefficient = str(ratio.idxmax())
    clients = differences.clients.xs(table.index[int(np.argmax(ratio))], level="coefficient")
    known = np.flatnonzero(clients["deviation"].notna())
    order = known[np.argsort(clients["deviation"].to_numpy()[known], kind="stable")]
    raw, effect, se = (clients[name].to_numpy()[order] for name in ("deviation", "effect", "se"))
    if not len(order):
        return Html("")
    place, reach = np.arange(len(order)), 1.96 * se
    # Few rows can make an interval a hundred times wider than the others.
    ends = np.concatenate([np.quantile(raw - reach, [0.02]), np.quantile(raw + reach, [0.98]), raw, [0.0]])
    y = Axis.of(ends, f"{coefficient}: deviation from the estimate")
    plot = Plot(Axis(-1.0, float(max(len(order), 1)), "clients, by deviation"), y, 340)
    plot.rule(y=0.0)
    plot.band(place, raw - reach, raw + reach, "", "95 % interval of the client's own estimate")
    names = labels[order]
    own = [f"{name}: {number(a)} (se {number(s)})" for name, a, s in zip(names, raw, se, strict=True)]
    size = 3.2 if len(order) <= 300 else 2.2
    plot.points(place, raw, classes_of(weights[order]), own, clients=order.tolist(), size=size)
    plot.name("w4", "own estimate, a diamond where the weight is below .1")
    if effect.any():
        shrunk = [
            f"{name}: {number(b)} shrunken, {number(a)} own" for name, a, b in zip(names, raw, effect, strict=True)
        ]
        plot.points(
            place, effect, "hollow", shrunk, clients=order.tolist(), size=size, label="shrunken (empirical Bayes)"
        )
    tau = number(float(table["tau"].iloc[int(np.argmax(ratio))]))
    words = f"The coefficient in which clients differ most beside their sampling error; tau = {tau}."
    return plot.figure("deviation-plot", f"Clients' deviations in {coefficient}.", words)


def error_chart(errors: pd.Series, tolerance: float) -> Html:
    """Return optimisation and consensus error beside the statistical error, which is 1 in these units."""
    known = errors.drop("total")[lambda part: np.isfinite(part) & (part > 0.0)]
    names = [*(f"{name} error" for name in known.index), "statistical error"]
    values = np.array([*known, 1.0])
    y = Axis(-0.6, len(names) - 0.4, "", names=names)
    plot = Plot(Axis.of([*values, tolerance], "standard errors, worst coefficient", log=True), y, 76 + 26 * len(names))
    plot.rule(x=tolerance, kind="quiet dotted", label=f"tolerance, {tolerance:g}")
    tips = [f"{name}: {number(value)} SE" for name, value in zip(names, values, strict=True)]
    plot.points(values, np.arange(len(names)), "w4", tips, size=4.4)
    words = "Numerical error, beside the statistical error."
    return plot.figure("error-plot", "Errors of the estimate.", words)


def run_chart(res: Estimates, se: Array | None) -> Html:
    """Return moves and spread of the clients along the runs, beside the statistical error."""
    table = res.trace
    begin = table.groupby("run")["round"].max().cumsum().shift(fill_value=0)
    at = (table["round"] + table["run"].map(begin)).to_numpy(dtype=float)
    rounds = res.solver == "rounds"
    moved, apart = table["moved"].to_numpy(dtype=float), table["consensus"].to_numpy(dtype=float)
    size = float(np.sqrt(np.square(se).sum())) if se is not None else np.nan
    label = "round" if rounds else "pass of the solver over the data"
    # Zeros have no place on a log scale.
    known = [value for value in (*moved, *apart, size) if np.isfinite(value) and value > 0.0]
    plot = Plot(Axis.of(at, label, zero=True), Axis.of(known, "Euclidean norm", log=True), 320)
    for edge in begin.iloc[1:]:
        plot.rule(x=float(edge), kind="quiet dotted")
    step = "a round" if rounds else "an iteration"
    kind = f"longest move of a client in {step}"
    plot.line(at, np.where(moved > 0, moved, np.nan), "good", kind)
    plot.line(at, np.where(apart > 0, apart, np.nan), "bad", "spread of the clients (consensus error)")
    if np.isfinite(size) and size > 0.0:
        plot.rule(y=size, label="statistical error: norm of the standard errors")
    if len(at) <= 400:
        tips = [
            f"{label} {a:g}: move {number(b)}, spread {number(c)}" for a, b, c in zip(at, moved, apart, strict=True)
        ]
        plot.points(at, np.where(moved > 0, moved, np.nan), "w4", tips, size=2.4)
    return plot.figure(
        "run-plot", "Course of the fit.", "Dotted lines part the stages of the fit." if len(begin) > 1 else ""
    )


def lambda_chart(path: pd.DataFrame) -> Html:
    """Return the score of each lambda, and how many clients it trusts."""
    at, score = np.arange(len(path)), path["score"].to_numpy(dtype=float)
    names = [f"{lam:.3g}" for lam in path["lam"]]
    plot = Plot(Axis(-0.5, len(at) - 0.5, "lambda", names=names), Axis.of(score, "held-out loss, better half"), 280)
    plot.line(at, score, "good", "score")
    chosen = path["chosen"].to_numpy(dtype=bool)
    tips = [
        f"lambda {name}: score {number(value)}, {trusted} clients trusted"
        for name, value, trusted in zip(names, score, path["trusted"], strict=True)
    ]
    kinds = np.where(chosen, "w0", "w4").tolist()
    plot.points(at, score, kinds, tips, size=4.5)
    plot.name("w0", "chosen")
    words = "The mean held-out loss of the better half of the clients; the least is chosen."
    return plot.figure("lambda-plot", "Lambda by cross-validation.", words)
