"""The command line with any words: an exit status, and never a traceback."""

import contextlib
import io
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from adfl_stats.cli.main import main

TEXT = """
fit check-network demo report efficiency study reproduce completion
rows.csv edges.csv none.csv empty.csv bad.csv --formula y~x y~ ~x y~z
y~x.q() (1|site) --client site nobody --network --family binomial cauchy --link probit --method DFL ADFL --clients
out.csv /none/out.csv --save fit.npz --html page.html page.txt --screen 0.1 2 nan -1 --lam --stages --missing drop
--help --version --no-weights --seed 1e9 --bogus
"""
WORDS = (*TEXT.split(), "", "\x00", "\udcff", "é")
GOOD = ("fit", "rows.csv", "--formula", "y ~ x", "--client", "site", "--network", "edges.csv", "--method", "DFL")


@cache
def content():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(list("abcd"), 10), "x": rng.normal(size=40)})
    frame["y"] = frame["x"] + rng.normal(size=40)
    edges = "source,target\na,b\nb,c\nc,d\nd,a\n"
    return {"rows.csv": frame.to_csv(index=False), "edges.csv": edges, "empty.csv": "", "bad.csv": 'a,b\n"1,2\n3\n'}


def case(seed):
    rng = np.random.default_rng([5, seed])
    words = [str(word) for word in rng.choice(WORDS, size=int(rng.integers(0, 9)))]
    if rng.random() < 0.5:
        words = [
            "fit",
            "rows.csv",
            "--formula",
            "y ~ x",
            "--client",
            "site",
            "--edges",
            "edges.csv",
            "--method",
            "dfl",
            *words,
        ]
    if slow := {"demo", "efficiency", "study", "reproduce"} & set(words):
        # These simulate for seconds; their arguments are looked at by the same parser.
        words = [word for word in words if word not in slow]
    before = os.getcwd()
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, text in content().items():
            (Path(folder) / name).write_text(text)
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(words)
        except SystemExit as end:
            status = end.code
        finally:
            os.chdir(before)
    assert status in (None, 0, 1, 2), (status, words)
    assert "Traceback" not in err.getvalue(), words
    if status == 2:
        assert err.getvalue().strip(), words
