"""Studies in TOML files, and what is said of bad input."""

import re
import textwrap

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from small_studies import numbers, small

import adfl_stats as ad

# ------------------------------------------------------------------ TOML


TOML = """
    methods = ["fit", "DFL", "oracle DFL"]
    corruptions = ["BF"]
    shares = [0.0, 0.2]
    replicates = 1
    seed = 3
    inference = false
    sizes = {n = [40, 60], p = 3}
    [networks.ours]
    file = "edges.csv"
    [designs.strong]
    family = "gaussian"
    slope = 2.0
    [fit]
    tolerance = 0.1
    heterogeneity = "none"
"""


def test_a_study_from_a_file(tmp_path, monkeypatch):
    net = ad.networks.directed_circle(12, 4, labels=[f"s{k}" for k in range(12)])
    edges = pd.DataFrame([(net.labels[(m + d) % 12], net.labels[m]) for m in range(12) for d in range(1, 5)])
    edges.set_axis(["source", "target"], axis=1).to_csv(tmp_path / "edges.csv", index=False)
    (tmp_path / "spec.toml").write_text(textwrap.dedent(TOML))
    monkeypatch.chdir("/")
    read = ad.Study.from_toml(tmp_path / "spec.toml")
    direct = ad.Study(
        ["fit", "DFL", "oracle DFL"],
        {"ours": ad.Network.from_file(tmp_path / "edges.csv")},
        {"strong": {"family": "gaussian", "slope": 2.0}},
        shares=[0.0, 0.2],
        sizes={"n": [40, 60], "p": 3},
        replicates=1,
        seed=3,
        fit={"tolerance": 0.1, "heterogeneity": "none"},
        inference=False,
    )
    assert read.specification() == direct.specification()
    assert_frame_equal(numbers(read.run()), numbers(direct.run()), check_exact=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('methods = ["fit"\nshares = [0.2]', r"spec.toml: .*at line 2, column \d+.*, near the key 'shares'"),
        ("seed = 1\n\nreplicate = 3", "spec.toml, line 3: key is 'replicate'; choose one of 'methods', 'networks'"),
        ("[fitt]\nstep = 1", "spec.toml, line 1: key is 'fitt'; choose one of 'methods'"),
        ('methods = ["adfl"]', "methods is 'adfl'; choose one of 'fit', 'DFL', 'BRIDGE-M'"),
        ('[methods.b]\nmethod = "Brige"', "method is 'Brige'; choose one of 'ADFL', 'DFL', 'Bridge'"),
        ('[methods.b]\nmethod = "Bridge"\nrul = "median"', "option of method Bridge is 'rul'; choose one of 'rule'"),
        ('[networks.r]\ngenerator = "ring"', "networks: generator is 'ring'; choose one of .*'directed_circle'"),
        ('[networks.r]\ngenerator = "directed_circle"\nd = 3', "networks: option of directed_circle is 'd'; choose"),
        ('networks = ["ring-5"]', "networks has 'ring-5'; choose circle-D, erdos-renyi-q or complete"),
        ('designs = ["gamma"]', "designs is 'gamma'; choose one of 'gaussian', 'binomial', 'poisson'"),
        ('[designs.d]\nfamily = "poisson"\nlaw = 2', "designs: option is 'law'; choose one of 'covariates'"),
        ('corruptions = ["XX"]', "corruptions is 'XX'; choose one of 'BF', 'OOD', 'MP'"),
        ('[corruptions.c]\nkind = "Shif"', "corruptions: kind is 'Shif'; choose one of 'PartialRows'"),
        (
            '[corruptions.c]\nkind = "Shift"\nlength = 2',
            "corruptions: option of Shift is 'length'; choose",
        ),
        ("[fit]\nstepp = 1", "fit: option is 'stepp'; choose one of 'step', 'rounds'"),
        ("replicates = 0", "replicates is 0; it must be at least 1"),
        ("sizes = {n = 0}", r"sizes\['n'\] is 0; it must be at least 1"),
        ("sizes = {n = 50, p = 3}", r"sizes has no 'M', which network 'circle-5' needs"),
        (
            "sizes = {M = 20, n = 9, p = 3, q = 3}",
            r"spec.toml, line 1: sizes has 'q', which designs by name do not take",
        ),
        ('seed = 1\nnetworks = ["circle-500"]', r"spec.toml, line 2: network 'circle-500': D is 500; with M = 100"),
        ('seed = 1\n\n[networks.a]\nfile = "no.csv"', r"spec.toml, line 3: network 'a': .*no.csv.*: No such file"),
        ('[methods.a]\nmethod = "IOS"', r"spec.toml, line 1: method IOS needs the option 'b'"),
        ('[corruptions.c]\nkind = "Composed"', r"spec.toml, line 1: corruptions: Composed needs the option 'parts'"),
        (
            '[corruptions.c]\nkind = "SignFlip"\nclients = [1]',
            r"option of SignFlip is 'clients'; choose one of 'scale'",
        ),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        ad.Study.from_toml(path)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ad.Study("fit"), TypeError, r"methods is 'fit'; give a list of names, as in methods=\['fit'\]"),
        (lambda: ad.Study([]), ValueError, "methods is empty; give at least one"),
        (lambda: ad.Study([ad.DFL(), ad.DFL(balance=True)]), ValueError, "methods has two values called 'DFL'"),
        (lambda: ad.Study({"a": ad.DFL}), TypeError, "methods has 'a', a <class .*; give a name, a method such as"),
        (lambda: small(networks=[ad.networks.complete(20)]), ValueError, "networks has .*, which has no name; give a"),
        (lambda: small(networks={"n": 5}), TypeError, "networks has 'n', a int; give a Network, a name such as"),
        (lambda: small(networks={"n": ad.networks.complete(9)}), ValueError, "'n' has 9 clients and sizes.* is 20"),
        (lambda: small(designs={"d": 5}), TypeError, "designs has 'd', a int; give 'gaussian', 'binomial'"),
        (lambda: small(designs={"d": lambda **k: 1}), TypeError, "design 'd' returned a int; a Simulation is wanted"),
        (lambda: small(corruptions=["none"]), ValueError, "corruptions has 'none', the word for data sets without"),
        (
            lambda: small(corruptions=["LF"]),
            ValueError,
            "corruption 'LF' flips binary labels, but family",
        ),
        (lambda: small(corruptions={"c": 3}), TypeError, "corruptions has 'c', a 3; give a name, a corruption such as"),
        (lambda: small(shares=[]), ValueError, "shares is empty; give at least one"),
        (lambda: small(shares=[1.0]), ValueError, r"shares is 1; it must lie in \[0, 1\)"),
        (lambda: small(sizes=[10, 20]), TypeError, r"sizes is \[10, 20\]; give a mapping, as in sizes="),
        (lambda: small(corruptions=[ad.simulate.Dynamic()]), ValueError, "changes during the rounds, and fit has no"),
        (lambda: small(fit={"solver": "newton"}), ValueError, "solver is 'newton'; choose one of 'auto'"),
        (lambda: small(fit=3), TypeError, r"fit is 3; give a mapping, as in fit="),
        (lambda: small(inference="no"), TypeError, r"inference is 'no' \(str\); give True or False"),
        (lambda: small([3]), TypeError, "methods has 3, a number; give names or objects"),
        (lambda: small().to_frame(), ValueError, r"the study has no results yet; call run\(\) first"),
        (lambda: small().run(jobs=0), ValueError, "jobs is 0; it must be at least 1"),
    ],
)
def test_bad_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_attacks_by_name(tmp_path):
    text = """
        methods = ["BRIDGE-M"]
        shares = [0.2]
        replicates = 1
        sizes = {M = 20, n = 40, p = 3}
        [corruptions.flips]
        kind = "SignFlip"
        scale = 2.0
    """
    (tmp_path / "spec.toml").write_text(textwrap.dedent(text))
    named = ad.Study.from_toml(tmp_path / "spec.toml")
    assert isinstance(named.corruptions["flips"], ad.attacks.SignFlip)
    assert named.corruptions["flips"].scale == 2.0
    assert isinstance(small(corruptions=["ALIE"]).corruptions["ALIE"], ad.attacks.ALIE)


def test_missing_files(tmp_path):
    with pytest.raises(OSError, match=re.escape("none.toml: No such file or directory; give a TOML file")):
        ad.Study.from_toml(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'methods = ["\xe9"]')
    with pytest.raises(ValueError, match=r"latin.toml: byte 12 is not UTF-8"):
        ad.Study.from_toml(tmp_path / "latin.toml")
