"""Who is trusted: a model of clients that differ, and of those that do not fit the majority.

`summaries` takes from the rows of each client what the model needs, `null` how a client that follows the model
varies, `mixture` and `spread` fit the model, `selection` chooses its parts, and `client_model` puts them together.
"""

from adfl_stats.trust.client_model import HETEROGENEITY, ClientModel, fit_client_model

__all__ = ["HETEROGENEITY", "ClientModel", "fit_client_model"]
