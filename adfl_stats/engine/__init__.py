"""The iteration: rounds, their limit, and the estimating equations that they solve."""
