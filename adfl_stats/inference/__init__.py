"""Inference after a fit: covariances, tests, screening, predictions, comparison with the oracle."""
