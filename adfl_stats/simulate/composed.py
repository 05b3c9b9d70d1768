"""Corruptions with options, and several on one client. All are choices of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import numpy as np

from adfl_stats._arguments import in_interval, one_of, whole_number
from adfl_stats._types import Array
from adfl_stats.losses.families import Family
from adfl_stats.simulate.corruptions import ClientDraw, Corruption, Kind, corrupt, corruption_kinds

__all__ = [
    "Composed",
    "Copies",
    "Dynamic",
    "HeavyTails",
    "PartialRows",
    "Shift",
    "SwappedColumns",
    "UnitError",
    "corruption_of",
]


def _label(kind: Kind) -> str:
    return kind if isinstance(kind, str) else str(getattr(kind, "name", getattr(kind, "__name__", "function")))


def _checked(kind: Any) -> Kind:
    """Return a corruption given by name, table, object or function."""
    if isinstance(kind, Mapping):
        return corruption_of(kind)
    return corruption_kinds(kind, 1)[0]


@dataclass(frozen=True)
class PartialRows(Corruption):
    """Corrupt some of a client's rows, chosen at random, and leave the others as they were.

    Parameters
    ----------
    of : str, Corruption or callable
        What happens to these rows.
    share : float
        Of the client's rows, in (0, 1].

    Examples
    --------
    >>> import adfl_stats as ad
    >>> third = ad.simulate.PartialRows("BF", 0.3)
    >>> clean = ad.simulate.glm_design(M=4, n=100, p=2, seed=1)
    >>> sim = ad.simulate.glm_design(M=4, n=100, p=2, abnormal=[0], corruption=third, seed=1)
    >>> int((clean.y != sim.y).sum())
    30
    """

    of: Kind = "BF"
    share: float = 0.3

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", _checked(self.of))
        in_interval(self.share, "share", 0.0, 1.0, open_low=True)

    @property
    def name(self) -> str:
        """Its label in tables."""
        return f"{_label(self.of)} in {self.share:.0%} of the rows"

    def __call__(self, draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the corrupted X and y of a client."""
        chosen = rng.permutation(len(draw.y))[: round(self.share * len(draw.y))]
        bad_X, bad_y = corrupt(self.of, draw, rng)
        X, y = draw.X.copy(), draw.y.copy()
        X[chosen], y[chosen] = bad_X[chosen], bad_y[chosen]
        return X, y


@dataclass(frozen=True)
class HeavyTails(Corruption):
    """Add t noise to the mean of Gaussian responses instead of normal noise; the regression stays.

    Parameters
    ----------
    df : float
        Degrees of freedom; at 2 and below the variance is infinite.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.glm_design(M=4, n=500, p=1, abnormal=[0], corruption=ad.simulate.HeavyTails(1.5), seed=1)
    >>> noise = sim.y - sim.X @ sim.theta0
    >>> bool(abs(noise[:500]).max() > 2 * abs(noise[500:]).max())
    True
    """

    df: float = 2.0

    def __post_init__(self) -> None:
        in_interval(self.df, "df", 0.0, np.inf, open_low=True)

    @property
    def name(self) -> str:
        """Its label in tables."""
        return f"t{self.df:g} noise"

    def __call__(self, draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the corrupted X and y of a client."""
        if draw.family != "gaussian":
            raise ValueError(
                f"HeavyTails changes the noise of real responses, but family is {draw.family!r}; use 'permute'"
            )
        mean = draw.y - draw.noise * draw.shocks
        return draw.X, mean + draw.noise * rng.standard_t(self.df, size=len(draw.y))


@dataclass(frozen=True)
class UnitError(Corruption):
    """Record one covariate in another unit: its column is multiplied by a factor after the responses were made.

    Parameters
    ----------
    column : int
        Of X, from 0; the constant, where there is one, counts and may not be chosen.
    factor : float
        For example 1000 for grams instead of kilograms.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.glm_design(M=4, n=50, p=2, abnormal=[0], corruption=ad.simulate.UnitError(1, 1000), seed=1)
    >>> bool(sim.X[:50, 1].std() > 500)
    True
    """

    column: int = 0
    factor: float = 1000.0

    def __post_init__(self) -> None:
        whole_number(self.column, "column", 0)
        in_interval(self.factor, "factor", -np.inf, np.inf)

    @property
    def name(self) -> str:
        """Its label in tables."""
        return f"column {self.column} times {self.factor:g}"

    def __call__(self, draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the corrupted X and y of a client."""
        X = draw.X.copy()
        X[:, _column(draw, self.column, "column")] *= self.factor
        return X, draw.y


def _column(draw: ClientDraw, column: int, name: str) -> int:
    """Return the column, refused where X has no such covariate."""
    low, high = int(draw.intercept), draw.X.shape[1] - 1
    if not low <= column <= high:
        raise ValueError(f"{name} is {column}; the covariates are columns {low} to {high}")
    return column


@dataclass(frozen=True)
class SwappedColumns(Corruption):
    """Exchange two covariates after the responses were made, as where a file's columns are in another order.

    Parameters
    ----------
    first, second : int
        Columns of X, from 0; the constant may not be chosen.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> swap = ad.simulate.SwappedColumns(0, 1)
    >>> clean = ad.simulate.glm_design(M=4, n=5, p=2, seed=1)
    >>> sim = ad.simulate.glm_design(M=4, n=5, p=2, abnormal=[0], corruption=swap, seed=1)
    >>> bool((sim.X[:5] == clean.X[:5, ::-1]).all())
    True
    """

    first: int = 0
    second: int = -1

    def __post_init__(self) -> None:
        whole_number(self.first, "first", 0)
        if whole_number(self.second, "second", -1) == self.first:
            raise ValueError(f"first and second are both {self.first}; give two columns")

    @property
    def name(self) -> str:
        """Its label in tables."""
        return f"columns {self.first} and {'last' if self.second < 0 else self.second} swapped"

    def __call__(self, draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the corrupted X and y of a client."""
        first = _column(draw, self.first, "first")
        second = _column(draw, draw.X.shape[1] - 1 if self.second < 0 else self.second, "second")
        X = draw.X.copy()
        X[:, [first, second]] = X[:, [second, first]]
        return X, draw.y


@dataclass(frozen=True)
class Shift(Corruption):
    """Make responses from a parameter that is shifted, in all abnormal clients in the same direction.

    Parameters
    ----------
    size : float
        Length of the shift delta in standard errors of the client: delta' I delta = size^2, where I is the
        information of the client's rows at theta0. All slopes are shifted equally.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.glm_design(M=4, n=400, p=1, abnormal=[0], corruption=ad.simulate.Shift(20), seed=1)
    >>> X, y = sim.X[:400, 0], sim.y[:400]
    >>> bool(abs(X @ y / (X @ X) - sim.theta0[0] - 20 / (X @ X) ** 0.5) < 4 / 20)
    True
    """

    size: float = 5.0

    def __post_init__(self) -> None:
        in_interval(self.size, "size", 0.0, np.inf, open_low=True)

    @property
    def name(self) -> str:
        """Its label in tables."""
        return f"shift by {self.size:g} SE"

    def __call__(self, draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the corrupted X and y of a client."""
        direction = np.ones(len(draw.theta0))
        direction[: int(draw.intercept)] = 0.0
        family = Family(draw.family, link=draw.link)
        weights = family.curvature(draw.X @ draw.theta0, draw.y) / (draw.noise**2 if draw.family == "gaussian" else 1)
        length = np.sqrt(np.sum(weights * (draw.X @ direction) ** 2))
        return draw.X, draw.respond(draw.theta0 + self.size * direction / length)


@dataclass(frozen=True)
class Copies(Corruption):
    """Give all abnormal clients the rows of one normal client, the same for all, repeated or cut to their own number.

    The rows follow the right law; counted as independent they make intervals too short.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.glm_design(M=4, n=5, p=2, abnormal=[1, 2], corruption=ad.simulate.Copies(), seed=1)
    >>> bool((sim.X[5:10] == sim.X[:5]).all() and (sim.y[10:15] == sim.y[:5]).all())
    True
    """

    @property
    def name(self) -> str:
        """Its label in tables."""
        return "copies"

    def __call__(self, draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the corrupted X and y of a client."""
        if draw.other is None:
            raise ValueError("Copies takes the rows of a normal client, but all clients are abnormal; name fewer")
        X, y = draw.other
        rows = np.arange(len(draw.y)) % len(y)
        return X[rows], y[rows]


@dataclass(frozen=True)
class Composed(Corruption):
    """Several corruptions of one client, one after the other.

    A later one sees the rows that the earlier ones left: after "OOD", "MP" makes responses from the shifted covariates;
    before it, from the clean ones.

    Parameters
    ----------
    parts : sequence of str, Corruption or callable
        In their order.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> both = ad.simulate.Composed(["OOD", ad.simulate.PartialRows("BF", 0.5)])
    >>> both.name
    'OOD + BF in 50% of the rows'
    """

    parts: Sequence[Kind]

    def __post_init__(self) -> None:
        if isinstance(self.parts, str) or not isinstance(self.parts, Sequence) or not self.parts:
            raise ValueError(f"parts is {self.parts!r}; give a list of corruptions, as in ['OOD', 'BF']")
        object.__setattr__(self, "parts", tuple(_checked(part) for part in self.parts))

    @property
    def name(self) -> str:
        """Its label in tables."""
        return " + ".join(map(_label, self.parts))

    def __call__(self, draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the corrupted X and y of a client."""
        for part in self.parts:
            X, y = corrupt(part, draw, rng)
            draw = replace(draw, X=X, y=y)
        return draw.X, draw.y


@dataclass(frozen=True)
class Dynamic:
    """Clients whose data are corrupted in some phases of the rounds only: a corruption of studies.

    The rounds of a fit are divided into phases of equal length. In each phase a part of the abnormal clients holds
    corrupted rows and the others their clean ones; a fit goes on from the estimates that it has. `ADFL` with `refresh`
    measures its clients again; without, it keeps the weights of its first phase, as Algorithms 1 and 2 do. Clients
    count as abnormal at the end if they are corrupted in the last phase.

    Parameters
    ----------
    of : str, Corruption or callable
        The corruption of the rows.
    phases : sequence of float
        The part of the abnormal clients that is corrupted in each phase, in [0, 1].

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.simulate.Dynamic("BF", phases=[0, 1, 0.5]).name
    'BF in phases 0, 1, 0.5'
    """

    of: Kind = "BF"
    phases: Sequence[float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", _checked(self.of))
        parts = tuple(in_interval(part, "phases", 0.0, 1.0) for part in self.phases)
        if len(parts) < 2:
            raise ValueError(f"phases is {self.phases!r}; give at least two, as in (0, 1)")
        object.__setattr__(self, "phases", parts)

    @property
    def name(self) -> str:
        """Its label in tables."""
        return f"{_label(self.of)} in phases {', '.join(f'{part:g}' for part in self.phases)}"


KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (PartialRows, HeavyTails, UnitError, SwappedColumns, Shift, Copies, Composed, Dynamic)
}


def corruption_of(table: Mapping[str, Any], known: Mapping[str, Any] = KINDS) -> Any:
    """Return a corruption from a table such as ``{"kind": "Shift", "size": 5}``; its kind is one of the `known`.

    Examples
    --------
    >>> corruption_of({"kind": "Composed", "parts": ["OOD", {"kind": "Shift", "size": 3}]}).name
    'OOD + shift by 3 SE'
    """
    given = dict(table)
    kind = known[one_of(given.pop("kind", None), "corruptions: kind", tuple(known))]
    parts = [part for part in fields(kind) if part.name != "clients"]
    for option in given:
        one_of(option, f"corruptions: option of {kind.__name__}", [part.name for part in parts])
    if len(parts) < len(fields(kind)):
        # An attack on messages, whose clients are chosen later.
        given["clients"] = []
    for part in parts:
        if part.default is part.default_factory is MISSING and part.name not in given:
            raise ValueError(f"corruptions: {kind.__name__} needs the option {part.name!r}")
    return kind(**given)
