"""The model of clients: how clients differ, and which of them do not fit the majority.

`summaries` reduces the rows of each client to what the model needs; `null` has the distribution of a normal client's
score, `mechanisms` its expectation under corruptions of known form, and `scoring` makes scores of these. `mixture` and
`spread` fit a model, `candidates` has its price and `chance` its gain by chance, `selection` chooses its parts, and
`fitting` alternates all that with the estimate; the result is a `client_model`.
"""

from adfl_stats.trust.client_model import ClientModel
from adfl_stats.trust.detection import detectable_shift
from adfl_stats.trust.fitting import HETEROGENEITY, differing_coefficients, fit_client_model, model_at
from adfl_stats.trust.selection import LEAST_FOR_SPREAD
from adfl_stats.trust.summaries import has_known_dispersion

__all__ = [
    "HETEROGENEITY",
    "LEAST_FOR_SPREAD",
    "ClientModel",
    "detectable_shift",
    "differing_coefficients",
    "fit_client_model",
    "has_known_dispersion",
    "model_at",
]
