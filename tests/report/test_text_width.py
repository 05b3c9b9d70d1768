"""Whatever prints results fits a page of 78 characters."""

import pytest

import adfl_stats as ad
from adfl_stats._text import WIDTH


@pytest.fixture(scope="module")
def printed():
    """By name what `print` writes of a fit, of a network and of models."""
    sim = ad.simulate.hospitals(seed=1, M=20, abnormal=3)
    net = ad.networks.directed_circle(20, 5, labels=sim.labels)
    formula = "readmitted ~ age + severity + comorbid + treated"
    model = ad.DecentralizedGLM.from_formula(formula, sim.frame(), client="hospital", network=net, family="binomial")
    res, plain = model.fit(keep_data=True), model.fit(ad.DFL(), step=0.1, rounds=60)
    return {
        "summary": res.summary(),
        "summary of DFL": plain.summary(),
        "check": res.check(),
        "screen": ad.screen(res),
        "heterogeneity": res.heterogeneity(),
        "sensitivity": res.sensitivity(clients=False),
        "bootstrap": res.bootstrap(5),
        "majority": res.majority(),
        "communication": res.communication(),
        "oracle": res.oracle(sim.abnormal_labels),
        "detection limit": res.detection_limit(share=0.2),
        "rates": model.rates(plain),
        "advice": model.advise(),
        "network": ad.check_network(net),
        "network that is not balanced": ad.check_network(ad.networks.central_client(12)),
        "design": ad.design(0.05, sigma=1, tau=0.1, clients=20),
    }


def test_every_line_fits_the_page(printed):
    widest = {name: max(map(len, str(one).split("\n"))) for name, one in printed.items()}
    assert {name: width for name, width in widest.items() if width > WIDTH} == {}
    # And no line but those of statsmodels' summaries ends in spaces.
    padded = {name for name, one in printed.items() if any(line != line.rstrip() for line in str(one).split("\n"))}
    assert padded <= {"summary", "summary of DFL"}
