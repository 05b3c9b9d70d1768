"""The subcommand ``adfl-stats fit``."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import adfl_stats as ad
from adfl_stats._arguments import in_interval, one_of
from adfl_stats.cli.launched import processes
from adfl_stats.cli.outputs import output_file, page_file
from adfl_stats.cli.rows import read_rows, read_whole
from adfl_stats.inference.covariance import COV_TYPES
from adfl_stats.inference.results import Results
from adfl_stats.inference.sensitivity import Sensitivity
from adfl_stats.methods.named import CLASSES, named_method

__all__ = ["add_fit", "option_value"]

ATTACKS = {name: getattr(ad.attacks, name) for name in ad.attacks.__all__ if name not in ("Attack", "Scene")}
EXAMPLES = """examples:
  adfl-stats fit stays.csv --formula "died ~ age + C(ward)" --client hospital --network edges.csv --family binomial
  adfl-stats fit stays.parquet --formula "n ~ age" --client site --network net.graphml --family poisson --exposure days
  adfl-stats fit data.tsv --formula "y ~ x" --client id --network W.npy --method Bridge --option rule=trimmed b=2
  adfl-stats fit data.csv --formula "y ~ x" --client id --network edges.csv --rounds 300 --step 0.1 --attack SignFlip \\
      --attackers 3 7 --attack-option scale=2
  mpiexec -n 4 adfl-stats fit data.csv --formula "y ~ x" --client id --network edges.csv
  mpiexec -n 4 adfl-stats fit "stays/*.parquet" --formula "y ~ x" --client id --network edges.csv --checkpoint kept
  adfl-stats fit data.csv --formula "y ~ x" --client id --network edges.csv --quiet --json fit.json --html fit.html

Exit status: 0; 2 on bad input; 130 after Ctrl-C. IDs of clients stay as they are written: 007 is not 7."""


def add_fit(commands: Any) -> None:
    """Add the subcommand to the subparsers of the command line."""
    fit = commands.add_parser(
        "fit",
        help="fit the rows of a file over a network and print the summary",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fit.add_argument("data", help="one row an observation: .csv, .tsv, .parquet, a folder or pattern of such files")
    fit.add_argument("--formula", required=True, help="for example 'y ~ x1 + C(group)'")
    fit.add_argument("--client", required=True, metavar="COLUMN", help="the column that names the client")
    fit.add_argument(
        "--network", "--edges", dest="network", required=True, metavar="FILE",
        help="who listens to whom: edges (.csv: source, target[, weight]; target hears source), a matrix (.npy, .npz, "
        ".mtx; rows are the clients in the order in which the data first name them), or a graph (.graphml)",
    )  # fmt: skip
    fit.add_argument("--sep", help="what separates fields of a text file; by default , and a tab for .tsv")
    fit.add_argument("--missing", choices=("raise", "drop"), default="raise", help="rows with missing values")
    model = fit.add_argument_group("model")
    model.add_argument("--family", default="gaussian", help="gaussian (default), binomial, poisson, ...")
    model.add_argument("--link", help="another link than the family's usual one, for example probit")
    model.add_argument("--var-power", type=float, help="the power of --family tweedie, between 1 and 2")
    model.add_argument("--weights", metavar="COLUMN", help="weights of the rows")
    model.add_argument("--offset", metavar="COLUMN", help="added to the linear predictor")
    model.add_argument("--exposure", metavar="COLUMN", help="its logarithm is added to the linear predictor")
    model.add_argument(
        "--weighting", default="sample", help="clients count by rows: sample (default); client; random-effects"
    )
    method = fit.add_argument_group("method")
    method.add_argument("--method", default="ADFL", help=f"{', '.join(CLASSES)}; in capitals or not (default ADFL)")
    method.add_argument("--option", nargs="+", default=[], metavar="NAME=VALUE", help="arguments of the method")
    method.add_argument("--lam", type=float, help="lambda of ADFL, short for --option lam=; weights of the paper")
    method.add_argument("--stages", type=int, help="stages of ADFL, short for --option stages=")
    method.add_argument("--step", type=float, help="the learning rate; by default chosen")
    method.add_argument("--rounds", type=int, help="rounds per stage; by default until the numerical error is small")
    method.add_argument("--solver", default="auto", help="auto (default), rounds or limit")
    method.add_argument("--heterogeneity", default="auto", help="may normal clients differ: auto (default), none, estimate, intercept")  # fmt: skip  # noqa: E501
    method.add_argument("--attack", help=f"false messages, a stress test: {', '.join(ATTACKS)}")
    method.add_argument("--attackers", nargs="+", default=[], metavar="ID", help="the clients that send them")
    method.add_argument("--attack-option", nargs="+", default=[], metavar="NAME=VALUE", help="arguments of the attack")
    method.add_argument(
        "--mpi", action="store_true",
        help="spread the clients over the ranks of MPI; the same results, printed and written by rank 0 (so it is with "
        "more than one process of mpiexec)",
    )  # fmt: skip
    method.add_argument(
        "--checkpoint", metavar="DIR", help="keep the state of the rounds there; the same command goes on from it"
    )
    method.add_argument("--every", type=float, default=60.0, metavar="SECONDS", help="between checkpoints (default 60)")
    out = fit.add_argument_group("output")
    out.add_argument("--cov-type", help=f"{', '.join(COV_TYPES)}; by default what the fit chooses")
    out.add_argument(
        "--screen", metavar="Q", type=float, nargs="?", const=0.1,
        help="print which clients are flagged as abnormal, at the false discovery rate Q (default 0.1)",
    )  # fmt: skip
    out.add_argument(
        "--sensitivity", action="store_true",
        help="fit again with other starts, weights and clients, and print what changes; on the page of --html too",
    )  # fmt: skip
    out.add_argument("--save", metavar="FILE", type=output_file, help="write the results (.npz)")
    out.add_argument("--clients", metavar="FILE", type=output_file, help="write the table of clients (CSV)")
    out.add_argument("--coef-csv", metavar="FILE", type=output_file, help="write the coefficients (CSV)")
    out.add_argument("--json", metavar="FILE", type=output_file, help="write coefficients, clients and fit (JSON)")
    out.add_argument("--html", metavar="FILE", type=page_file, help="write the fit as one HTML page")
    out.add_argument("--quiet", action="store_true", help="print nothing but warnings and errors")
    fit.set_defaults(run=_fit, spread=True)


def _fit(options: argparse.Namespace) -> None:
    started = processes()
    if not options.mpi and started == 1:
        _tell(*_fitted(options, None), options)
        return
    ranks = ad.MPI()
    if ranks.size == 1 < started:
        raise RuntimeError(
            f"mpiexec started {started} processes, and each of them is alone for the MPI library of mpi4py: the two "
            "are of different libraries. Start with the mpiexec of that library (pip install 'adfl-stats[mpi]' brings "
            "both)"
        )
    made = None
    with ranks.together():
        if ranks.rank == 0:
            made = _fitted(options, ranks)
        else:
            _take_part(options, ranks)
    # The other ranks are done: a file that cannot be written is reported as without them.
    if made is not None:
        _tell(*made, options)


def _take_part(options: argparse.Namespace, ranks: ad.MPI) -> None:
    """Take part in a fit without output: rank 0 prints and writes the results."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _fitted(options, ranks)
    except Exception as error:
        # An error on all ranks is printed by rank 0; of one on this rank alone `together` has the cause.
        raise SystemExit(2) from error


def _watched(options: argparse.Namespace) -> bool:
    return sys.stderr.isatty() and not options.quiet


def _fitted(options: argparse.Namespace, ranks: ad.MPI | None) -> tuple[Results, Sensitivity | None]:
    """Return the results of a fit, and its sensitivity if wanted; every rank calls this with the same options."""
    # Options are checked before the file is read.
    method, attack = _method(options), _attack(options)
    if options.cov_type is not None:
        one_of(options.cov_type, "--cov-type", COV_TYPES)
    one_of(options.solver, "--solver", ("auto", "rounds", "limit"))
    if options.screen is not None:
        in_interval(options.screen, "--screen", 0.0, 1.0, open_low=True, open_high=True)
    whole = ranks is None or read_whole(options.data, options.client)
    model = _model(options) if ranks is None or whole else _model_by_rank(options, ranks)
    bar = _watched(options) and (ranks is None or ranks.rank == 0)
    res = model.fit(
        method,
        step="auto" if options.step is None else options.step,
        rounds=options.rounds,
        solver=options.solver,
        heterogeneity=options.heterogeneity,
        attack=attack,
        progress=bar,
        transport=ranks,
        keep_data=options.sensitivity,
        checkpoint=options.checkpoint,
        every=options.every,
    )
    return res, res.sensitivity(progress=bar) if options.sensitivity else None


def _tell(res: Results, sensitivity: Sensitivity | None, options: argparse.Namespace) -> None:
    """Print and write what the options name."""
    if options.cov_type:
        res = res.get_robustcov_results(options.cov_type)
    if not options.quiet:
        print(res.summary())
        if options.screen is not None:
            print(f"\n{ad.screen(res, options.screen)}")
        if sensitivity is not None:
            print(f"\n{sensitivity}")
    _write(res, options, [] if sensitivity is None else [sensitivity])


def _model(options: argparse.Namespace) -> ad.DecentralizedGLM:
    """Return the model of all rows."""
    frame = read_rows(options.data, options.client, options.sep)
    return ad.DecentralizedGLM.from_formula(
        options.formula,
        frame,
        options.client,
        _network(options.network, pd.unique(frame[options.client].dropna())),
        _family(options),
        weighting=options.weighting,
        offset=options.offset,
        exposure=options.exposure,
        weights=options.weights,
        missing=options.missing,
    )


def _model_by_rank(options: argparse.Namespace, ranks: ad.MPI) -> ad.DecentralizedGLM:
    """Return the model of Parquet files, of which each rank reads its own clients."""
    data = ad.RankData.from_parquet(
        options.data,
        options.formula,
        options.client,
        ranks,
        offset=options.offset,
        exposure=options.exposure,
        weights=options.weights,
        missing=options.missing,
    )
    if not all(isinstance(label, str) for label in data.labels):
        raise ValueError(f"the column {options.client!r} of {options.data} must be text, as the IDs in a network are")
    network = _network(options.network, data.labels)
    return ad.DecentralizedGLM(data, network, _family(options), weighting=options.weighting)


def _network(path: str, clients: Any) -> ad.Network:
    """Return the network with the clients' IDs as text."""
    if Path(path).suffix.lower() == ".csv":
        edges = pd.read_csv(path, dtype={"source": str, "target": str}, keep_default_na=False, na_values=[""])
        return ad.Network.from_edges(edges, labels=clients)
    net = ad.Network.from_file(path)
    if isinstance(net.labels, pd.RangeIndex) or (net.labels == np.arange(net.n_clients)).all():
        if len(clients) != net.n_clients:
            raise ValueError(
                f"--network {path} has {net.n_clients} clients without names, and the data have {len(clients)}; give a "
                "matrix with a row for each client, in the order in which the data first name them"
            )
        return ad.Network(net.indptr, net.indices, net.weights, pd.Index(clients))
    return ad.Network(net.indptr, net.indices, net.weights, net.labels.map(str))


def _family(options: argparse.Namespace) -> Any:
    """Return the family as the model takes it."""
    if options.link is None and options.var_power is None:
        return options.family
    return ad.family(options.family, options.link, var_power=options.var_power)


def option_value(text: str, flag: str) -> tuple[str, Any]:
    """Return name and value of NAME=VALUE: numbers, true, false and lists as in TOML, anything else as text.

    Examples
    --------
    >>> [option_value(text, "--option") for text in ("b=2", "rule=median", "lam=[1, 2.5]")]
    [('b', 2), ('rule', 'median'), ('lam', [1, 2.5])]
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{flag} is {text!r}; give NAME=VALUE, as in {flag} b=2")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def _options(texts: list[str], flag: str) -> dict[str, Any]:
    return dict(option_value(text, flag) for text in texts)


def _method(options: argparse.Namespace) -> ad.Method:
    given = _options(options.option, "--option")
    for name in ("lam", "stages"):
        if getattr(options, name) is not None:
            given[name] = getattr(options, name)
    if options.method.lower() == "adfl":
        given = {"balance": True} | given
    return named_method(options.method, given, "--method")


def _attack(options: argparse.Namespace) -> Any:
    given = _options(options.attack_option, "--attack-option")
    if options.attack is None:
        if given or options.attackers:
            raise ValueError(f"--attackers and --attack-option need --attack; choose one of {', '.join(ATTACKS)}")
        return None
    known = {name.lower(): name for name in ATTACKS}
    name = known.get(options.attack.lower()) or one_of(options.attack, "--attack", tuple(ATTACKS))
    if not options.attackers:
        raise ValueError(f"--attack {name} needs --attackers, the IDs of the clients that send false messages")
    return _called(ATTACKS[name], name, {"clients": options.attackers} | given)


def _called(kind: Any, name: str, given: dict[str, Any]) -> Any:
    from dataclasses import fields

    for option in given:
        one_of(option, f"option of --attack {name}", [part.name for part in fields(kind)])
    return kind(**given)


def _write(res: ad.Results, options: argparse.Namespace, also: list[Any]) -> None:
    if options.clients:
        res.clients().to_csv(options.clients)
    if options.coef_csv:
        _coefficients(res).to_csv(options.coef_csv, index_label="name")
    if options.json:
        Path(options.json).write_text(json.dumps(_as_json(res), indent=1, allow_nan=False), encoding="utf-8")
    if options.save:
        res.save(options.save)
    if options.html:
        res.report(options.html, also=also)


def _coefficients(res: ad.Results) -> pd.DataFrame:
    limits = res.conf_int()
    return pd.DataFrame(
        {
            "coef": res.params,
            "se": res.bse,
            "z": res.tvalues,
            "p_value": res.pvalues,
            "lower": limits[0],
            "upper": limits[1],
        }
    )


def _as_json(res: ad.Results) -> dict[str, Any]:
    """Return what programs ask for: numbers that are not finite are null."""
    fit = {
        "method": res.method.name,
        "family": res.family.label,
        "link": res.family.link,
        "cov_type": res.cov_type,
        "n_clients": res.network.n_clients,
        "nobs": res.nobs,
        "solver": res.solver,
        "rounds": res.rounds,
        "converged": bool(res.converged),
        "numerical_error": float(res.numerical_error["total"]),
        "scale": float(res.scale),
        "version": ad.__version__,
    }
    clients = json.loads(res.clients().rename(index=str).to_json(orient="index", double_precision=15))
    coefficients = json.loads(_coefficients(res).to_json(orient="index", double_precision=15))
    return {
        "fit": {name: _finite(value) for name, value in fit.items()},
        "coefficients": coefficients,
        "clients": clients,
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value
