"""Names come from users: in HTML, LaTeX and on a terminal they are text, and nothing else."""

import re

import numpy as np
import pytest

import adfl_stats as ad

NAMES = [r"\input{/etc/passwd}", "a~b^c_d$e%f#g", "<script>alert(1)</script>", "red\x1b[31m", "\u202eback"]
CLIENTS = ["<img src=x onerror=alert(1)>", "b & c", "d\x07\x1b]0;t\x07", "e\r\nf", r"\write18{ls}"]


@pytest.fixture(scope="module")
def res():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 5)), rng.normal(size=200)
    data = ad.ClientData.from_arrays(X, y, np.repeat(CLIENTS, 40), names=NAMES)
    return ad.DecentralizedGLM(data, ad.networks.complete(5, labels=CLIENTS)).fit(
        ad.DFL(), step=0.1, rounds=200, keep_data=True
    )


def pages(res):
    return {
        "summary": res.summary().as_html(),
        "results": res._repr_html_(),
        "check": res.check()._repr_html_(),
        "screen": ad.screen(res)._repr_html_(),
        "heterogeneity": res.heterogeneity()._repr_html_(),
        "majority": res.majority()._repr_html_(),
    }


def test_html_has_no_tags_of_users(res):
    for name, page in pages(res).items():
        tags = {tag.lower() for tag in re.findall(r"<\s*/?\s*([a-zA-Z0-9]+)", page)}
        assert not tags & {"script", "img"}, name
        bad = [character for character in page if character != "\n" and not character.isprintable()]
        assert bad == [], name
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in pages(res)["summary"]
    assert r"d\x07\x1b]0;t\x07" in pages(res)["screen"]
    assert r"\u202eback" in pages(res)["majority"]


def test_latex_has_no_commands_of_users(res):
    text = res.summary().as_latex()
    assert r"\input" not in text
    assert r"\write" not in text
    assert r"\textbackslash{}input\{/etc/passwd\}" in text
    assert r"a\textasciitilde{}b\textasciicircum{}c\_d\$e\%f\#g" in text


def test_a_terminal_is_not_commanded(res):
    texts = {
        "summary": str(res.summary()),
        "csv": res.summary().as_csv(),
        "check": str(res.check()),
        "screen": str(ad.screen(res)),
        "heterogeneity": str(res.heterogeneity()),
    }
    for name, text in texts.items():
        bad = [character for character in text if character != "\n" and not character.isprintable()]
        assert bad == [], name
    assert r"red\x1b[31m" in texts["summary"]
    assert r"\u202eback" in texts["summary"]
