"""The values of a study's factors: methods, networks, designs, corruptions and sizes, by name or as objects."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np

from adfl_stats._arguments import in_interval, listing, one_of, several, takes, whole_number
from adfl_stats._types import Array, Mask
from adfl_stats._warn import warn
from adfl_stats.engine.attacks import ALIE, IPM, Attack, Dissensus, Gaussian, SignFlip
from adfl_stats.errors import ConditionWarning
from adfl_stats.methods import ADFL, DFL, SLBRN, Bridge, ClippedGossip, GeometricMedian, Local, Method, Oracle
from adfl_stats.methods.named import NamedMethod
from adfl_stats.network import generators
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule
from adfl_stats.simulate.composed import KINDS, Dynamic, corruption_of
from adfl_stats.simulate.corruptions import CORRUPTIONS, Corruption, Kind
from adfl_stats.simulate.designs import Simulation, glm_design

__all__ = [
    "METHODS",
    "CorruptionLike",
    "DesignLike",
    "Make",
    "MethodLike",
    "NamedDesign",
    "NamedNetwork",
    "NetworkLike",
    "Several",
    "about_network",
    "chosen_corruptions",
    "chosen_designs",
    "chosen_fit",
    "chosen_methods",
    "chosen_networks",
    "chosen_shares",
    "chosen_sizes",
    "network_by_name",
]

Make: TypeAlias = Callable[[Mask], Method | None]
Topology: TypeAlias = Network | NetworkSchedule | Callable[[int], Network | NetworkSchedule]
MakeData: TypeAlias = Callable[..., Simulation]
# What a study takes: a name, an object, a function that makes one, or a table of a TOML file.
MethodLike: TypeAlias = str | Method | Make | Mapping[str, Any]
NetworkLike: TypeAlias = str | Topology | Mapping[str, Any]
DesignLike: TypeAlias = str | MakeData | Mapping[str, Any]
CorruptionLike: TypeAlias = Kind | Attack | Mapping[str, Any] | None
T = TypeVar("T")
# One of them, several, or several with labels.
Several: TypeAlias = T | Iterable[T] | Mapping[str, T]

# The paper leaves the grid of lambda open; ours is around 1 / sqrt(p / n), one over the norm of a normal client's
# gradient in its linear design.
PAPER_PATH = (0.5, 1.0, 2.0, 4.0)

METHODS: dict[str, Make] = {
    "fit": lambda abnormal: None,
    "DFL": lambda abnormal: DFL(),
    "BRIDGE-M": lambda abnormal: Bridge("median"),
    "BRIDGE-T": lambda abnormal: Bridge("trimmed", b=1),
    "ClippedGossip": lambda abnormal: ClippedGossip(),
    "GeometricMedian": lambda abnormal: GeometricMedian(),
    "SLBRN-M": lambda abnormal: SLBRN("median", force=True),
    "SLBRN-T": lambda abnormal: SLBRN("trimmed", b=1, force=True),
    "aDFL (paper)": lambda abnormal: ADFL(
        lam=PAPER_PATH, measure="norm", equalise=False, init=Bridge("median"), stages=3
    ),
    "local": lambda abnormal: Local(),
    "oracle DFL": lambda abnormal: Oracle(abnormal, balance=True),
}
"""Methods by name; each makes its method object, None for the default of `fit`, from the mask of abnormal clients."""

_SCHEDULES = ("NetworkSchedule", "Phase", "dropout", "schedule")
GENERATORS = {name: getattr(generators, name) for name in generators.__all__ if name not in _SCHEDULES}


def _labelled(values: Any, name: str, label: Callable[[Any], str | None]) -> dict[str, Any]:
    """Return the values of a factor by their labels: those of a mapping, or their own."""
    if isinstance(values, Mapping) and not _is_table(values):
        if not values:
            raise ValueError(f"{name} is empty; give at least one")
        return {str(key): value for key, value in values.items()}
    if isinstance(values, str) or callable(values) or not isinstance(values, Iterable) or _is_table(values):
        values = [values]
    by_label: dict[str, Any] = {}
    for value in several(values, name, "names or objects"):
        if isinstance(value, (bool, int, float)):
            raise TypeError(f"{name} has {value!r}, a number; give names or objects, as in the docstring of ad.Study")
        text = label(value)
        if text is None:
            raise ValueError(f"{name} has {value!r}, which has no name; give a mapping, as in {name}={{'mine': ...}}")
        if text in by_label:
            raise ValueError(f"{name} has two values called {text!r}; give a mapping, as in {name}={{'first': ...}}")
        by_label[text] = value
    if not by_label:
        raise ValueError(f"{name} is empty; give at least one")
    return by_label


# The key of a table that says what its other keys are options of.
TABLES = ("method", "generator", "family", "kind", "file")


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(value.get(key), str) for key in TABLES)


def _own_name(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        # 'trimmed, b = 2' of the table {method = "Bridge", rule = "trimmed", b = 2}.
        first, *rest = value.items()
        return ", ".join([str(first[1]), *(f"{key} = {part}" for key, part in rest)])
    for attribute in ("name", "label", "__name__"):
        text = getattr(value, attribute, None)
        if isinstance(text, str) and text != "<lambda>":
            return text
    return type(value).__name__ if isinstance(value, Attack) else None


# ------------------------------------------------------------------ methods


def chosen_methods(methods: Several[MethodLike]) -> dict[str, Make]:
    """Return functions that make methods, by their labels."""
    if isinstance(methods, str):
        raise TypeError(f"methods is {methods!r}; give a list of names, as in methods=[{methods!r}]")
    return {label: _maker(value, label) for label, value in _labelled(methods, "methods", _own_name).items()}


@dataclass(frozen=True)
class _Given:
    """A method that is the same for all data sets."""

    method: Method | None

    def __call__(self, abnormal: Mask) -> Method | None:
        return self.method


def _maker(value: Any, label: str) -> Make:
    if value is None or isinstance(value, Method):
        return _Given(value)
    if isinstance(value, str):
        return METHODS[one_of(value, "methods", tuple(METHODS))]
    if isinstance(value, Mapping):
        table = dict(value)
        made = NamedMethod(table.pop("method", ""), table)
        made(np.zeros(1, dtype=bool))
        return made
    if callable(value) and not inspect.isclass(value):
        return value
    raise TypeError(
        f"methods has {label!r}, a {value!r}; give a name, a method such as ad.DFL(), or a function that makes one "
        "from the mask of abnormal clients"
    )


# ------------------------------------------------------------------ networks


def chosen_networks(networks: Several[NetworkLike]) -> dict[str, Topology]:
    """Return networks, or functions that make them from the number of clients, by their labels."""
    return {label: _topology(value, label) for label, value in _labelled(networks, "networks", _network_name).items()}


def _network_name(value: Any) -> str | None:
    return None if isinstance(value, (Network, NetworkSchedule)) else _own_name(value)


@dataclass(frozen=True)
class NamedNetwork:
    """A network by the name of its generator and its arguments; random ones are drawn once, with their `seed`."""

    generator: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, M: int) -> Network:
        """Return the network of M clients."""
        return GENERATORS[self.generator](M, **self.options)


@contextmanager
def about_network(label: str) -> Iterator[None]:
    """Name the network in the messages of what is done with it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise type(error)(f"network {label!r}: {error}") from error
    except OSError as error:
        raise OSError(f"network {label!r}: {error}") from error


def _topology(value: Any, label: str) -> Topology:
    if isinstance(value, (Network, NetworkSchedule)):
        return value
    if isinstance(value, str):
        return network_by_name(value)
    if isinstance(value, Mapping):
        table = dict(value)
        if isinstance(table.get("file"), str):
            with about_network(label):
                return Network.from_file(table.pop("file"), **table)
        name = one_of(table.pop("generator", None), "networks: generator", tuple(GENERATORS))
        allowed = [part for part in inspect.signature(GENERATORS[name]).parameters if part != "M"]
        for option in table:
            one_of(option, f"networks: option of {name}", allowed)
        if "seed" in allowed:
            # All replicates share the network.
            table = {"seed": 1} | table
        return NamedNetwork(name, table)
    if callable(value):
        return value
    raise TypeError(
        f"networks has {label!r}, a {type(value).__name__}; give a Network, a name such as 'circle-5', a table such as "
        "{'generator': 'erdos_renyi', 'q': 0.1}, or a function of the number of clients"
    )


def network_by_name(name: str) -> NamedNetwork:
    """Return the network of a short name: circle-D, erdos-renyi-q or complete."""
    if name == "complete":
        return NamedNetwork("complete")
    if circle := re.fullmatch(r"circle-(\d+)", name):
        return NamedNetwork("directed_circle", {"D": int(circle[1])})
    if random := re.fullmatch(r"erdos-renyi-(0?\.\d+)", name):
        return NamedNetwork("erdos_renyi", {"q": float(random[1]), "seed": 1})
    raise ValueError(
        f"networks has {name!r}; choose circle-D, erdos-renyi-q or complete, as in 'circle-5' or 'erdos-renyi-.1'"
    )


# ------------------------------------------------------------------ designs


def chosen_designs(designs: Several[DesignLike]) -> dict[str, MakeData]:
    """Return functions that simulate data, by their labels."""
    return {label: _design(value, label) for label, value in _labelled(designs, "designs", _own_name).items()}


@dataclass(frozen=True)
class NamedDesign:
    """`simulate.glm_design` with some of its arguments; `slope` stands for the paper's theta0 times a number."""

    family: str
    options: Mapping[str, Any] = field(default_factory=dict)
    slope: float | None = None

    def __call__(self, *, p: int = 50, **given: Any) -> Simulation:
        """Return a data set."""
        options = dict(self.options)
        if unknown := [part for part in given if part not in inspect.signature(glm_design).parameters]:
            raise ValueError(f"sizes has {listing(unknown)}, which designs by name do not take; they have M, n and p")
        if self.slope is not None:
            options["theta0"] = _paper_truth(self.slope, p, bool(options.get("intercept", False)))
        return glm_design(self.family, p=p, **options, **given)


@lru_cache(maxsize=16)
def _paper_truth(slope: float, p: int, intercept: bool) -> Array:
    """The slopes of the first floor(0.2 p) covariates, at least one, and zeros."""
    theta = np.concatenate([np.zeros(int(intercept)), slope * (np.arange(p) < max(1, p // 5))])
    theta.flags.writeable = False
    return theta


FAMILIES = ("gaussian", "binomial", "poisson")
# What the study gives to a design itself.
_TAKEN = ("family", "abnormal", "corruption", "seed", "M", "n", "p")


def _design(value: Any, label: str) -> MakeData:
    if isinstance(value, str):
        return NamedDesign(one_of(value, "designs", FAMILIES))
    if isinstance(value, Mapping):
        table = dict(value)
        family = one_of(table.pop("family", None), "designs: family", FAMILIES)
        slope = table.pop("slope", None)
        allowed = [part for part in inspect.signature(glm_design).parameters if part not in _TAKEN]
        for option in table:
            one_of(option, "designs: option", [*allowed, "slope"])
        return NamedDesign(family, table, None if slope is None else float(slope))
    if callable(value) and not inspect.isclass(value) and takes(value, abnormal=0.0, corruption=None, seed=0):
        return value
    raise TypeError(
        f"designs has {label!r}, a {type(value).__name__}; give {', '.join(map(repr, FAMILIES))}, a table such as "
        "{'family': 'gaussian', 'covariates': 'heterogeneous'}, or a function of abnormal, corruption, seed and sizes"
    )


# ------------------------------------------------------------------ corruptions and sizes


# The clients that attack are the abnormal ones of each data set.
ATTACKS: dict[str, Any] = {kind.__name__: kind for kind in (ALIE, IPM, Dissensus, Gaussian, SignFlip)}


def chosen_corruptions(corruptions: Several[CorruptionLike]) -> dict[str, Any]:
    """Return corruptions of data, or attacks on messages, by their labels."""
    by_name = _labelled(corruptions, "corruptions", _own_name)
    if "none" in by_name:
        raise ValueError("corruptions has 'none', the word for data sets without abnormal clients; ask for share 0")
    return {label: _corruption(value, label) for label, value in by_name.items()}


def _corruption(value: Any, label: str) -> Any:
    if isinstance(value, (Attack, Corruption, Dynamic)):
        return value
    if isinstance(value, str):
        one_of(value, "corruptions", (*CORRUPTIONS, *ATTACKS))
        return ATTACKS[value](clients=[]) if value in ATTACKS else value
    if isinstance(value, Mapping):
        return corruption_of(value, KINDS | ATTACKS)
    if callable(value) and not inspect.isclass(value):
        return value
    if isinstance(value, (list, tuple)):
        return [_corruption(part, label) for part in value]
    raise TypeError(
        f"corruptions has {label!r}, a {value!r}; give a name, a corruption such as ad.simulate.shift(5), a function "
        "of (X, y, rng), or an attack such as ad.attacks.SignFlip([])"
    )


def chosen_sizes(sizes: Mapping[str, object] | None) -> list[dict[str, Any]]:
    """Return the arguments of designs, one dict for each combination of those given as lists."""
    given = {"M": 100, "n": 100, "p": 50} if sizes is None else sizes
    if not isinstance(given, Mapping):
        raise TypeError(f"sizes is {sizes!r}; give a mapping, as in sizes={{'M': 100, 'n': [50, 100], 'p': 10}}")
    lists = {str(key): list(value) if isinstance(value, list) else [value] for key, value in given.items()}
    for key, values in lists.items():
        if not values:
            raise ValueError(f"sizes[{key!r}] is empty; give at least one")
        for value in values:
            if key in ("M", "n", "p") and not isinstance(value, tuple):
                whole_number(value, f"sizes[{key!r}]", 1)
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def chosen_shares(shares: Any) -> list[float]:
    """Return the shares of abnormal clients, each once; warn of a half and more."""
    many = isinstance(shares, Iterable) and not isinstance(shares, str)
    values = several(shares, "shares", "numbers") if many else [shares]
    if not values:
        raise ValueError("shares is empty; give at least one, as in shares=[0.2]")
    checked = [in_interval(share, "shares", 0.0, 1.0, open_high=True) for share in values]
    majorities = [share for share in checked if share >= 0.5]
    if majorities:
        warn(
            f"shares has {listing(majorities)}: where half of the clients or more are abnormal, the majority is not "
            "identified, and no theory covers it",
            ConditionWarning,
        )
    return list(dict.fromkeys(checked))


# Arguments of `DecentralizedGLM.fit` that all methods of a study share.
FIT_OPTIONS = ("step", "rounds", "solver", "tolerance", "max_rounds", "heterogeneity")


def chosen_fit(fit: Mapping[str, float | str | None] | None) -> dict[str, Any]:
    """Return the arguments of `DecentralizedGLM.fit` that all methods share."""
    if fit is not None and not isinstance(fit, Mapping):
        raise TypeError(f"fit is {fit!r}; give a mapping, as in fit={{'step': 0.1, 'rounds': 300}}")
    options: dict[str, Any] = dict(fit or {})
    for option in options:
        one_of(option, "fit: option", FIT_OPTIONS)
    solver = one_of(options.get("solver", "auto"), "solver", ("auto", "rounds", "limit"))
    # Methods without a limit refuse it; "auto" takes it where there is one.
    return options | {"solver": "rounds" if solver == "rounds" else "auto"}
