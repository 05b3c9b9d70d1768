"""Small studies that several test modules run."""

import adfl_stats as ad


def small(methods=("DFL",), **choices):
    """A study of small data sets on one network."""
    sizes = {"M": 20, "n": 40, "p": 3}
    usual = {"corruptions": ["BF"], "shares": [0.0, 0.2], "sizes": sizes, "replicates": 3, "inference": False}
    return ad.Study(methods, **{**usual, **choices})


def numbers(study):
    """What must be the same to the last bit: everything but the times."""
    return study.draws().drop(columns="seconds")
