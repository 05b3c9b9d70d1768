"""The page of a report: checks with their verdicts, advice, tables, and the network where there is one."""

from __future__ import annotations

import numpy as np
import pandas as pd

from adfl_stats._text import number
from adfl_stats.network.network import Network
from adfl_stats.report.pages.charts import Axis, Plot
from adfl_stats.report.pages.drawing import influence_classes, network_figure
from adfl_stats.report.pages.markup import Html, joined, paragraphs, tag
from adfl_stats.report.pages.page import Section, page
from adfl_stats.report.pages.tables import VERDICTS, advice_list, check_table, client_table, glossary, plain_table
from adfl_stats.theory.checks import STATUSES, Report

__all__ = ["check_page"]

# All eigenvalues are computed up to so many clients, as in `plots.spectrum`.
MOST_EIGENVALUES = 1000

COLUMNS = {
    "hears": "Clients that it receives from, itself included where the network has self-loops.",
    "heard by": "Clients that receive from it.",
    "influence": "Its share of the network's consensus, over the mean; 0: its data do not count in the limit.",
    "own weight": "The weight of its own estimate in what it combines.",
}


def check_page(report: Report, title: str | None = None) -> Html:
    """Return the page of a report.

    Parameters
    ----------
    report : Report
        Checks, advice, tables, and the network where it is about one.
    title : str, optional
        The heading; that of the report if not given.
    """
    sections = [Section("summary", "Summary", _summary(report))]
    if report.network is not None:
        sections.append(Section("net", "Network", _network(report.network)))
    heading = "What was checked, with the paper's conditions where it has them."
    sections.append(Section("checks", "Checks", joined(paragraphs([VERDICTS]), check_table(report.checks, heading))))
    if report.tables:
        tables = [plain_table(table, f"{name}.") for name, table in report.tables.items()]
        sections.append(Section("tables", "Tables", joined(*tables)))
    if report.network is not None:
        sections.append(Section("clients", "Clients", _clients(report.network)))
    return page(report.title if title is None else title, _count(report), sections)


def _count(report: Report) -> str:
    counts = [(status, sum(check.status == status for check in report.checks)) for status in STATUSES]
    return f"{len(report.checks)} checks: " + ", ".join(f"{count} {status}" for status, count in counts if count) + "."


def _summary(report: Report) -> Html:
    pieces = []
    if report.failed:
        pieces.append(check_table(report.failed, "What fails."))
    else:
        pieces.append(paragraphs(["No check fails."]))
    if report.advice:
        pieces += [tag("h3", "Advice"), advice_list(report.advice)]
    return joined(*pieces)


def _network(net: Network) -> Html:
    share = net.influence.to_numpy() * net.n_clients
    tips = [
        f"{label}: hears {heard}, heard by {out}\ninfluence {value:.2f}"
        for label, heard, out, value in zip(net.labels, net.in_degree, net.out_degree, share, strict=True)
    ]
    drawn = network_figure(net, influence_classes(net), tips, by="influence")
    if net.n_clients > MOST_EIGENVALUES:
        return drawn
    return tag("div", tag("div", drawn), tag("div", _spectrum(net)), class_="pair drawn")


def _spectrum(net: Network) -> Html:
    """Return the eigenvalues of W in the unit circle."""
    values = np.linalg.eigvals(net.W.toarray())
    values = values[np.argsort(-np.abs(values), kind="stable")]
    first = int(np.argmin(np.abs(values - 1.0)))
    turn = np.linspace(0.0, 2.0 * np.pi, 181)
    ends = Axis(-1.12, 1.12, "real part"), Axis(-1.12, 1.12, "imaginary part")
    plot = Plot(*ends, 590, 560)
    plot.rule(x=0.0)
    plot.rule(y=0.0)
    plot.line(np.cos(turn), np.sin(turn), "quiet", "unit circle")
    second = net.second_eigenvalue
    plot.line(second * np.cos(turn), second * np.sin(turn), "good", f"second modulus, {number(second)}")
    tips = [f"{value.real:.4g} {value.imag:+.4g} i\nmodulus {abs(value):.4g}" for value in values]
    kinds = ["w0" if k == first else "w4" for k in range(len(values))]
    plot.points(values.real, values.imag, kinds, tips, size=4.0)
    plot.name("w0", "1, the consensus")
    words = (
        f"All eigenvalues except one equal to 1 have modulus at most {number(second)}, the asymptotic contraction "
        "factor of disagreement per round."
    )
    return plot.figure("spectrum", "Eigenvalues of W.", words)


def _clients(net: Network) -> Html:
    share = net.influence.to_numpy() * net.n_clients
    table = pd.DataFrame(
        {"hears": net.in_degree, "heard by": net.out_degree, "influence": share, "own weight": net.W.diagonal()},
        index=pd.Index(net.labels, name="client"),
    )
    order = np.argsort(share, kind="stable")
    marks = {"influence zero": share <= 0.0}
    listed = client_table(table, "Clients, the least influence first.", key="client", marks=marks, order=order.tolist())
    return joined(listed, glossary(COLUMNS, "What the columns mean"))
