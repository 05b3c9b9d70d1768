"""Families and links by name; the formulas are in a class per family in the modules imported here."""

from __future__ import annotations

from typing import Any

import numpy as np
from statsmodels.genmod import families
from statsmodels.genmod.families.links import Link
from statsmodels.robust import norms

from adfl_stats._arguments import in_interval
from adfl_stats._types import FamilyLike
from adfl_stats.losses import discrete as discrete  # These two enter their families where `Family` finds them.
from adfl_stats.losses import power_variance as power_variance
from adfl_stats.losses.family import Family, family_names
from adfl_stats.losses.huber import Huber
from adfl_stats.losses.links import link_name

__all__ = ["FAMILY_NAMES", "Family", "Huber", "family", "resolve_family"]


FAMILY_NAMES = family_names()
_CHOICE = f"{', '.join(map(repr, FAMILY_NAMES))}; other links by ad.family(name, link=...)"


def family(
    name: str, link: str | Link | None = None, *, alpha: float | None = None, var_power: float | None = None
) -> Family:
    """Return a family composed with a link, for `DecentralizedGLM` and wherever else a family is wanted.

    Parameters
    ----------
    name : str
        One of "gaussian" (links identity, log), "binomial" (logit, probit, cloglog, loglog), "poisson" (log,
        identity, sqrt), "gamma" (log, inverse, identity), "inversegaussian" (log, inverse squared), "tweedie" (log),
        "negativebinomial" (log), "huber" (identity).
    link : str or statsmodels link instance, optional
        The first of these links, if not given.
    alpha : float, optional
        The negative binomial's: variance mu + alpha mu^2. If not given it is estimated from the data before a fit.
    var_power : float, optional
        Tweedie's p, between 1 and 2: variance mu^p; needed for "tweedie".

    Returns
    -------
    Family
        An immutable instance.

    Notes
    -----
    Model-based standard errors (``cov_type="nonrobust"``) and score statistics use the expected information,
    sandwiches the observed one, as in statsmodels. They are the same for canonical links. Newton's method uses the
    observed information, but for losses that are not convex (Gaussian with log, gamma with identity, inverse Gaussian
    with log) the expected one: Fisher's scoring. statsmodels family instances with these links are accepted as well.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.glm_design("binomial", M=20, n=100, p=2, intercept=True, seed=1)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> net = ad.networks.directed_circle(20, 5)
    >>> res = ad.DecentralizedGLM(data, net, ad.family("binomial", link="probit")).fit()
    >>> res.family.link
    'probit'
    """
    plain = _plain_name(name)
    if plain == "multinomial":
        raise ValueError("family 'multinomial' has one link and takes its classes from y; pass family='multinomial'")
    for given, what, owner in ((alpha, "alpha", "negativebinomial"), (var_power, "var_power", "tweedie")):
        if given is not None and plain != owner:
            raise ValueError(f"{what} is {given!r}, but family {plain!r} has none; it belongs to {owner!r}")
    if plain == "tweedie" and var_power is None:
        raise ValueError("family 'tweedie' needs its power, 1 < var_power < 2: ad.family('tweedie', var_power=1.5)")
    chosen = "" if link is None else link_name(link)
    if plain == "huber":
        return Family(plain, tuning=Huber().c, link=chosen)
    if plain == "tweedie":
        return Family(plain, _power(var_power), link=chosen)
    return Family(plain, 0.0 if alpha is None else _alpha(alpha), link=chosen)


def resolve_family(given: FamilyLike, classes: int = 0) -> Family:
    """Turn a name, a statsmodels family instance or a `Family` into a `Family`.

    Parameters
    ----------
    given : str, statsmodels family instance, Huber, statsmodels HuberT or Family
        Strings are the names in `FAMILY_NAMES`, with the usual link; ``"negativebinomial"`` without
        alpha and Huber's loss without a scale have par = 0, to be filled in.
    classes : int
        Number of classes of y; used by the multinomial.
    """
    if isinstance(given, Family):
        return given
    if isinstance(given, norms.HuberT):
        given = Huber(c=given.t)
    if isinstance(given, Huber):
        return _of_huber(given)
    if isinstance(given, str):
        if _plain_name(given) != "multinomial":
            return family(given)
        if classes < 2:
            raise ValueError(f"family 'multinomial' needs y with at least 2 classes, found {classes}")
        return Family("multinomial", outputs=classes - 1)
    if isinstance(given, type) and issubclass(given, (families.Family, Huber, norms.HuberT)):
        raise TypeError(f"family is the class {given.__name__}; pass an instance, {given.__name__}()")
    name = type(given).__name__.lower()
    if not isinstance(given, families.Family) or name not in FAMILY_NAMES:
        raise ValueError(f"family is {given!r}; choose one of {_CHOICE}")
    link = link_name(given.link)
    if name == "tweedie":
        return Family(name, _power(given.var_power), link=link)
    return Family(name, _alpha(given.alpha) if name == "negativebinomial" else 0.0, link=link)


def _plain_name(name: Any) -> str:
    plain = name.lower().replace("_", "").replace(" ", "") if isinstance(name, str) else ""
    if plain not in FAMILY_NAMES:
        raise ValueError(f"family is {name!r}; choose one of {_CHOICE}")
    return plain


def _of_huber(given: Huber) -> Family:
    return Family("huber", par=given.c * (given.scale or 0.0), tuning=given.c)


def _alpha(value: Any) -> float:
    return in_interval(value, "alpha", 0.0, np.inf, open_low=True)


def _power(value: Any) -> float:
    """Return Tweedie's power, checked; at the ends of its interval are other families."""
    try:
        return in_interval(value, "var_power", 1.0, 2.0, open_low=True, open_high=True)
    except ValueError as error:
        raise ValueError(f"{error}: powers 1, 2 and 3 are 'poisson', 'gamma' and 'inversegaussian'") from None
