"""Results in words: a statsmodels `Summary` with a header, coefficients, clients, theory and notes."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from statsmodels.iolib.summary import Summary
from statsmodels.iolib.table import SimpleTable

from adfl_stats.fit import TRUST

if TYPE_CHECKING:
    from adfl_stats.results import Results

__all__ = ["summarize"]

WIDTH = 78
MOST_SUSPICIOUS = 5


def summarize(res: Results, alpha: float = 0.05) -> Summary:
    """Return the summary of a fit; every line fits 80 columns."""
    summary = Summary()
    summary.tables = [_header(res), _coefficients(res, alpha), _clients(res), _theory(res)]
    summary.add_extra_txt(_notes(res))
    return summary


def _header(res: Results) -> SimpleTable:
    fit, net = res._fit, res.network
    low, high = int(fit.sizes.min()), int(fit.sizes.max())
    left = [
        ("Dep. variable:", _short(fit.y_name, 18)),
        ("Method:", fit.method),
        ("Family (link):", f"{fit.family.name} ({fit.family.link})"),
        ("Start:", str(fit.details.get("start", ""))),
        ("Step:", f"{fit.step:.3g}"),
        ("Rounds (total):", f"{fit.rounds} ({fit.total_rounds})"),
        ("Numerical error:", f"{fit.error.total:.3f} SE"),
        ("Converged:", "yes" if res.converged else "NO"),
    ]
    right = [
        ("Clients:", f"{net.n_clients}"),
        ("Edges:", f"{net.n_edges}"),
        ("Observations:", f"{res.nobs}"),
        ("Rows per client:", f"{low}" if low == high else f"{low} to {high}"),
        ("SE(W):", f"{net.se:.4g}"),
        ("rho (Condition 5):", f"{net.rho:.4f}"),
        ("Effective clients:", f"{res.effective_clients:.1f}"),
        _fit_cell(res),
    ]
    table = _pairs(left, "Decentralised GLM Results", [17, 19])
    # Side by side, so that both columns of names are names in HTML and LaTeX too.
    table.extend_right(_pairs([(f"  {name}", value) for name, value in right], None, [20, 16]))
    return table


def _pairs(cells: list[tuple[str, str]], title: str | None, widths: list[int]) -> SimpleTable:
    return SimpleTable(
        [[value] for _, value in cells], stubs=[name for name, _ in cells], title=title, txt_fmt=_layout(widths, "r")
    )


def _fit_cell(res: Results) -> tuple[str, str]:
    if res.family.estimates_scale:
        return "Scale:", f"{res.scale:.5g}"
    return "Log-likelihood:", f"{res.llf:.6g}"


def _coefficients(res: Results, alpha: float) -> SimpleTable:
    limits = res.conf_int(alpha).to_numpy()
    rows = [
        [_number(coef), _number(se), f"{coef / se:.3f}", f"{p:.3f}", _number(low), _number(high)]
        for coef, se, p, (low, high) in zip(res.params, res.bse, res.pvalues, limits, strict=True)
    ]
    headers = ["coef", "std err", "z", "P>|z|", f"[{alpha / 2:.3g}", f"{1 - alpha / 2:.3g}]"]
    stubs = [_short(name, 20) for name in res.params.index]
    return SimpleTable(rows, headers=headers, stubs=stubs, txt_fmt=_layout([20, 10, 9, 8, 7, 9, 9], "r" * 6))


def _clients(res: Results) -> SimpleTable:
    table = res.clients()
    doubted = int((~res._fit.trusted).sum())
    title = f"Clients: {doubted} of {len(table)} down-weighted (weight below {TRUST:g})"
    worst = table.sort_values(["weight", "score"], ascending=[True, False], kind="stable").head(MOST_SUSPICIOUS)
    rows = [
        [f"{row.n}", f"{row.gradient:.3g}", f"{row.score:.1f} ({row.df})", f"{row.weight:.3g}", f"{row.distance:.3f}"]
        for row in worst.itertuples()
    ]
    headers = ["rows", "gradient", "score (df)", "weight", "dist., SE"]
    stubs = [_short(str(label), 20) for label in worst.index]
    return SimpleTable(
        rows, headers=headers, stubs=stubs, title=title, txt_fmt=_layout([20, 8, 10, 15, 10, 10], "r" * 5)
    )


def _theory(res: Results) -> SimpleTable:
    """Return what the theory asks for that the network and the settings show by themselves."""
    fit, net = res._fit, res.network
    lines = [
        ["Condition 5: rho", f"{net.rho:.4f}", "< 1", "holds" if net.rho < 1 else "fails"],
        ["Prop. 1: step + SE(W)", f"{fit.step + net.se:.3g}", f"o(1/N), 1/N = {1 / res.nobs:.1g}", "indicative"],
    ]
    lam = fit.details.get("lam")
    if lam is not None and fit.details.get("measure") == "norm":
        low, high = np.log(res.nobs), np.sqrt(fit.sizes.mean()) * len(fit.labels) ** (-1 / 8)
        lines.append(["Theorem 3: lambda", f"{lam:.3g}", f"{low:.3g} to {high:.3g}", "indicative"])
    rows, stubs = [line[1:] for line in lines], [line[0] for line in lines]
    return SimpleTable(
        rows,
        headers=["value", "wanted", "status"],
        stubs=stubs,
        title="Theory",
        txt_fmt=_layout([26, 12, 22, 15], "rrr"),
    )


def _notes(res: Results) -> list[str]:
    fit = res._fit
    notes = [
        "Standard errors are the sandwich at the weighted estimate, given the clients' final weights. They assume "
        "independent rows and clients that share one parameter once the down-weighted ones are set aside.",
        _error_note(res),
    ]
    if "lam" in fit.details:
        suspicion = {"norm": "gradient norm", "score": "excess of the root score statistic over its 95 % point"}[
            fit.details["measure"]
        ]
        notes.append(
            f"Weights exp(-lambda s) over their largest, lambda = {fit.details['lam']:.3g}, s = {suspicion}, "
            f"{fit.details['stages']} stage(s)."
        )
    if fit.details.get("balance") and not res.network.is_doubly_stochastic:
        notes.append(
            "Steps are balanced: each is divided by the client's influence, so that unequal influence costs nothing."
        )
    if res.network.rho >= 1:
        notes.append(
            "Condition 5 fails on this network: the paper's convergence results do not apply. The numerical error "
            "above was measured, not inferred from them."
        )
    if not res.converged:
        notes.append("The numerical error is above the tolerance: read the table with care.")
    lines = ["Notes:"]
    for k, note in enumerate(notes, start=1):
        lines += textwrap.wrap(f"[{k}] {note}", WIDTH, subsequent_indent="    ")
    return lines


def _error_note(res: Results) -> str:
    error = res._fit.error
    if np.isnan(error.optimisation):
        return "Numerical error: consensus only; a method that takes medians solves no equation to hold it against."
    return (
        f"Numerical error: optimisation {error.optimisation:.3f} + consensus {error.consensus:.3f} standard errors, "
        f"for the worst coefficient; wanted {res._fit.tolerance:g}."
    )


def _layout(widths: list[int], aligns: str) -> dict[str, Any]:
    """Return a text format with columns of given widths (the stub first) that fill WIDTH."""
    return {
        "data_fmts": ["%s"],
        "empty_cell": "",
        "colwidths": widths,
        "colsep": " ",
        "row_pre": "",
        "row_post": "",
        "table_dec_above": "=",
        "table_dec_below": "=",
        "header_dec_below": "-",
        "header_fmt": "%s",
        "stub_fmt": "%s",
        "title_align": "c",
        "header_align": "r",
        "data_aligns": aligns,
        "stubs_align": "l",
        "fmt": "txt",
    }


def _number(value: float) -> str:
    """Four decimals, or three significant digits where that would be all zeros or too wide."""
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"
