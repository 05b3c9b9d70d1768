"""What a fit says: covariances, tests, screening, predictions, comparison with the oracle."""
