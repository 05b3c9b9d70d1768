"""Further results on the page of a fit: rates, sensitivity, oracle, screening, checks, tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._text import number
from adfl_stats.inference.sensitivity import Sensitivity
from adfl_stats.report.pages.charts import Axis, Plot
from adfl_stats.report.pages.markup import Html, joined, paragraphs
from adfl_stats.report.pages.page import Section, page
from adfl_stats.report.pages.tables import VERDICTS, advice_list, check_table, plain_table
from adfl_stats.theory.checks import Report
from adfl_stats.theory.rates import Rates

__all__ = ["extra_sections", "rates_page"]

# Rows of a table on the page, and of sensitivities drawn: the largest shifts. Ours.
MOST_ROWS, MOST_SHIFTS = 60, 25


def extra_sections(extras: Iterable[object]) -> list[Section]:
    """Return a section for each further result.

    Parameters
    ----------
    extras : iterable
        `Rates`, `Report`, frames, and results that have a ``to_frame()`` (sensitivity, oracle, screening, ...).
    """
    sections: list[Section] = []
    for k, extra in enumerate(extras):
        title, content = _titled(extra)
        sections.append(Section(f"extra-{k}", title, content))
    return sections


def _titled(extra: object) -> tuple[str, Html]:
    makers: list[tuple[type, Callable[[Any], tuple[str, Html]]]] = [
        (Rates, lambda rates: ("Convergence by round", _rates(rates))),
        (Sensitivity, lambda result: ("Sensitivity", _sensitivity(result))),
        (Report, lambda report: (report.title, _report(report))),
        (pd.DataFrame, lambda frame: ("Table", _frame(frame, "Table."))),
    ]
    for kind, make in makers:
        if isinstance(extra, kind):
            return make(extra)
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(extra).__name__).capitalize()
    if hasattr(extra, "to_frame"):
        return title, _frame(extra.to_frame(), f"{title}.")
    raise TypeError(
        f"also has a {type(extra).__name__}; wanted are results such as model.rates(res), res.check(...), "
        "res.oracle(...), screen(res), or a DataFrame"
    )


def _frame(frame: pd.DataFrame, caption: str) -> Html:
    if isinstance(frame, pd.Series):
        frame = frame.to_frame()
    if len(frame) > MOST_ROWS:
        caption = f"{caption} The first {MOST_ROWS} of {len(frame):,} rows."
    corner = " ".join(str(name) for name in frame.index.names if name)
    return plain_table(frame.iloc[:MOST_ROWS], caption, corner=corner)


def _report(report: Report) -> Html:
    pieces = [paragraphs([VERDICTS]), check_table(report.checks, report.title)]
    pieces += [_frame(table, f"{name}.") for name, table in report.tables.items()]
    return joined(*pieces, advice_list(report.advice) if report.advice else Html(""))


# ---------------------------------------------------------------------- rates


def rates_page(rates: Rates, title: str | None = None) -> Html:
    """Return the page of rates."""
    words = f"Contraction factors and errors by round at step {number(rates.step)}."
    return page(
        "Rates of convergence" if title is None else title,
        words,
        [Section("rates", "Convergence by round", _rates(rates))],
    )


def _rates(rates: Rates) -> Html:
    """Return errors by round, the factors and the floor."""
    where = "coordinates of pooled curvature one" if rates.preconditioned else "the paper's coordinates"
    words = (
        f"At step {number(rates.step)}, in {where}: the recursion (4.1) from the usual start, with the weights of the "
        "fit. Rounds beyond the point where both errors are small beside 1 gain nothing."
    )
    return joined(
        paragraphs([words]),
        _errors(rates),
        plain_table(rates.to_frame(), "Factor by which an error shrinks in a round.", corner="rate"),
        plain_table(rates.floor, "Error that rounds do not remove.", corner="part"),
        paragraphs([_bound(rates.paper_floor)]),
    )


def _bound(floor: float) -> str:
    if not np.isfinite(floor):
        return "Proposition 1 gives no finite bound of it here: Condition 3 or Condition 5 fails."
    return f"Proposition 1 bounds it, up to its constant, by {number(floor)}."


def _errors(rates: Rates) -> Html:
    table = rates.distances
    at = table["round"].to_numpy(dtype=float)
    parts = {name: table[name].where(table[name] > 0.0).to_numpy(dtype=float) for name in ("optimisation", "consensus")}
    y = Axis.of([*np.concatenate(list(parts.values())), 1.0], "standard errors, worst coefficient", log=True)
    plot = Plot(Axis.of(at, "round", zero=True), y, 340)
    plot.rule(y=1.0, label="statistical error, 1")
    kinds = {"optimisation": "good", "consensus": "bad"}
    for name, values in parts.items():
        plot.line(at, values, kinds[name], f"{name} error")
        tips = [f"round {a:.0f}: {name} error {number(value)} SE" for a, value in zip(at, values, strict=True)]
        plot.points(at, values, "w4" if name == "optimisation" else "w0", tips, size=1.8)
    words = "Both errors end where a fixed step ends."
    return plot.figure("rates-plot", "Optimisation, consensus and statistical error.", words)


# ---------------------------------------------------------------------- sensitivity


def _sensitivity(result: Sensitivity) -> Html:
    """Return the largest moves of the estimate under other choices, drawn and as a table."""
    table = result.to_frame()
    size = table["shift"].abs().fillna(-1.0).to_numpy()
    # The choices themselves, and of the clients left out those that move the estimate most.
    left = np.array([str(name[0] if isinstance(name, tuple) else name) == "without" for name in table.index])
    first = np.flatnonzero(~left)[:MOST_SHIFTS]
    most = np.flatnonzero(left)[np.argsort(-size[left], kind="stable")][: max(MOST_SHIFTS - len(first), 5)]
    shown = table.iloc[np.concatenate([first, most])]
    names = [" ".join(map(str, name)).strip() if isinstance(name, tuple) else str(name) for name in shown.index]
    shift = shown["shift"].to_numpy(dtype=float)
    axis = Axis.of([*shift, -1.0, 1.0], "shift of the coefficient that moves most, in standard errors of this fit")
    plot = Plot(axis, Axis(-0.6, len(names) - 0.4, "", names=names), 76 + 22 * len(names))
    plot.rule(x=0.0)
    for end in (-1.0, 1.0):
        plot.rule(x=end, kind="quiet dotted", label="one standard error" if end == 1.0 else "")
    tips = [
        f"{name}: {coefficient} moves by {move:+.2f} standard errors"
        for name, coefficient, move in zip(names, shown["coefficient"], shift, strict=True)
    ]
    plot.points(shift, np.arange(len(names)), ["w0" if abs(move) > 1.0 else "w4" for move in shift], tips, size=4.0)
    words = f"{len(names)} of {len(table)} choices. A diamond: more than one standard error."
    drawn = plot.figure("sensitivity-plot", "What other choices would say.", words)
    return joined(drawn, _frame(shown, "Estimates under other choices."))
