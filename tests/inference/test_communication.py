"""What left a client: counted by phase, the same in every place, against counts by hand."""

from collections import Counter

import numpy as np
import pytest
from places import batches_of, in_places, some_clients

import adfl_stats as ad
from adfl_stats.engine.gossip import Neighbours
from adfl_stats.engine.ledger import Counted, Ledger, phase
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import Local
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM

M, P = 12, 3
NETWORK = ad.networks.directed_circle(M, 4)


def drawn():
    sim = ad.simulate.glm_design("gaussian", M=M, n=30, p=P, seed=2)
    return ad.ClientData.from_arrays(sim.X, sim.y, sim.client)


@pytest.fixture(scope="module")
def model():
    return ad.DecentralizedGLM(drawn(), NETWORK)


def neighbours(res):
    table = res.communication().to_frame()
    return table[table["to"] == "each neighbour"].set_index("phase")


def test_rounds_tell_neighbours_the_estimate(model):
    """Four numbers a message would be a bug: P are sent; EXTRA sends one vector a round, tracking two."""
    plan = {"step": 0.05, "rounds": 40}
    assert neighbours(model.fit(ad.DFL(), **plan)).loc["rounds", ["messages", "numbers"]].tolist() == [40, 40 * P]
    undirected = ad.DecentralizedGLM(drawn(), ad.networks.erdos_renyi(M, 0.6, seed=3).metropolis())
    for method, vectors in ((ad.Extra(), 1), (ad.GradientTracking(), 2), (ad.Bridge("median"), 1)):
        sent = neighbours(undirected.fit(method, **plan)).loc["rounds"]
        assert sent["numbers"] == 40 * vectors * P, method


@pytest.mark.parametrize("method", [ad.DFL(), ad.GradientTracking()], ids=["kernel", "python"])
def test_plain_rounds_take_nothing_from_the_whole_network(method):
    """Three clients, two coefficients, seven rounds: start and trace by hand, in the kernel's loop and in Python."""
    sim = ad.simulate.glm_design("gaussian", M=3, n=20, p=2, seed=1)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    res = ad.DecentralizedGLM(data, ad.networks.complete(3).metropolis()).fit(method, step=0.01, rounds=7)
    table = res.communication().to_frame()
    found = table[~table["phase"].isin(["model", "inference"])].set_index(["phase", "to"])[["messages", "numbers"]]
    vectors = 2 if isinstance(method, ad.GradientTracking) else 1
    # A line of the trace: means of both coefficients, of their squares, and twice the number of clients. The moves of
    # each round, and once estimates, for the bound on moves.
    trace = {"everybody, as the sum": [7 * 4, 7 * 6], "everybody, as the maximum": [7 + 1, 7 + 2]}
    expected = {
        ("rounds", "each neighbour"): [7 * vectors, 7 * vectors * 2],
        # The constant columns.
        ("start", "everybody"): [1, 2],
        # The mean number of rows; whether Gram matrices keep their digits: means of columns, and X'X.
        ("start", "everybody, as the sum"): [2 + 2, 2 + 2 + 4],
    } | {("trace", to): counts for to, counts in trace.items()}
    assert {key: counts.tolist() for key, counts in found.iterrows()} == expected


def test_what_building_a_model_sends_is_counted_by_hand():
    """n = 20 rows of p = 2 columns: X'X; largest numbers of each column and of y, two flags; hashes; rows for Huber."""
    sim = ad.simulate.glm_design("gaussian", M=3, n=20, p=2, seed=1)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)

    def sent(family, **how):
        res = ad.DecentralizedGLM(data, ad.networks.complete(3), family).fit(ad.DFL(), step=0.01, rounds=2, **how)
        table = res.communication().to_frame()
        return table[table["phase"] == "model"].set_index("what")

    gaussian, huber = sent("gaussian"), sent("huber")
    by_kind = {"its summand of a sum over all clients": [1, 4], "its own numbers": [4, 2 + 1 + 2]}
    by_kind |= {"hashes of its rows, of 64 bits": [1, 2 + 2 * 20]}
    assert gaussian.loc[list(by_kind), ["messages", "numbers"]].to_numpy().tolist() == list(by_kind.values())
    assert set(huber.index) - set(gaussian.index) == {"rows of its data"}
    # Covariates, response and weight of all rows, which are few.
    assert huber.loc["rows of its data", "numbers"] == 20 * (2 + 1 + 1)
    assert not gaussian.loc["hashes of its rows, of 64 bits", "matrix"]
    # A sum takes the rounds of push-sum and its weight, rows are passed on by all three clients.
    gossip, price = sent("gaussian", transport=ad.Gossip(1e-6)), Neighbours(ad.networks.complete(3), 1e-6).price
    assert price.diameter == 1
    assert gossip["gossip"].tolist() == [price.rounds, 4, 1]
    assert gossip["gossip_numbers"].tolist() == [5 * price.rounds, 3 * 5, 3 * 42]


@pytest.mark.parametrize("method", [None, ad.ADFL(lam="cv"), ad.DFL(), ad.Bridge("median")])
def test_no_message_is_forgotten(model, method, monkeypatch):
    """The calls that reach the transport, counted there, are those of the table; checks of rows come before."""
    calls = Counter()

    def spied(name):
        plain = getattr(Local, name)

        def spy(self, *given):
            calls[name] += 1
            return plain(self, *given)

        monkeypatch.setattr(Local, name, spy)

    # What is found once for a model is not sent again.
    assert not model.rows.overflowing.any()
    for name in ("total", "gather", "largest"):
        spied(name)
    res = model.fit(method) if method is None or method.has_limit else model.fit(method, step=0.05, rounds=20)
    table = res.communication().to_frame()
    told = table[table["phase"] != "model"].groupby("to")["messages"].sum()
    assert calls["total"] == told["everybody, as the sum"]
    assert calls["gather"] == told["everybody"]
    # Rounds in the kernel look for the longest move themselves.
    looped = table[(table["phase"] == "rounds") & (table["to"] == "each neighbour")]["messages"].sum()
    assert 0 <= told["everybody, as the maximum"] - calls["largest"] <= looped


def test_what_was_fitted_before_does_not_count():
    """The search for numbers that overflow counts in fits that ask for it."""
    alone, again = (ad.DecentralizedGLM(drawn(), NETWORK) for _ in range(2))
    default = again.fit().communication().to_frame()
    plain = [one.fit(ad.DFL()).communication().to_frame() for one in (alone, again)]
    assert plain[0].equals(plain[1])
    assert default.loc[0, "messages"] > plain[0].loc[0, "messages"]
    assert again.fit().communication().to_frame().equals(default)


def test_only_what_is_as_large_as_a_matrix_has_its_mark():
    """Twelve starts have a dozen numbers and no matrix; with three classes X'X has p^2 numbers, fewer than P^2."""
    table = ad.DecentralizedGLM(drawn(), NETWORK).fit().communication().to_frame()
    assert not table.loc[(table["what"] == "its own numbers") & (table["phase"] != "model"), "matrix"].any()
    data = drawn()
    classes = ad.ClientData.from_arrays(data.X, np.arange(data.n_rows) % 3, np.repeat(data.labels, data.sizes))
    table = ad.DecentralizedGLM(classes, NETWORK, "multinomial").fit(ad.DFL()).communication().to_frame()
    sums = table[(table["phase"] == "model") & (table["to"] == "everybody, as the sum")]
    assert sums[["largest", "matrix"]].to_numpy().tolist() == [[P * P, True]]


def test_sums_maxima_and_rows_are_counted_by_hand():
    transport = Counted(Local())
    values = np.ones((M, 5))
    transport.total(lambda at: values[at].sum(axis=0))
    assert transport.ledger.entries == {}
    with phase(transport, "start"):
        transport.total(lambda at: values[at].sum(axis=0))
        with phase(transport, "tuning"):
            transport.gather(values)
            transport.gather(values[:, 0])
        transport.largest(values[:, :2])
    assert transport.ledger.words() == [
        ["start", "summand", 1, 5, 5, 0, 0], ["tuning", "row", 2, 6, 5, 0, 0], ["start", "maximum", 1, 2, 2, 0, 0]
    ]  # fmt: skip
    assert Ledger.of_words(transport.ledger.words()) == Ledger(transport.ledger.entries)


def test_places_send_what_one_place_sends():
    data, bounds = drawn(), (0, 5, 7, M)

    def sent(k, place):
        own = data if k is None else some_clients(data, batches_of(bounds)[k])
        counted = Counted(place)
        problem = Problem(GLM(own, Family("gaussian")), NETWORK, transport=counted)
        with phase(counted, "rounds"):
            ad.ADFL(balance=True).estimate(problem, Plan(solver="limit"))
        return counted.ledger.words()

    whole = sent(None, Local(np.array(bounds)))
    assert {name for name, *_ in whole} == {"start", "flags", "rounds", "trace"}
    assert all(one == whole for one in in_places(bounds, sent))


def test_a_report_compares_with_a_hub_and_with_rounds(model, tmp_path):
    res = model.fit()
    sent = res.communication()
    table = sent.to_frame()
    assert list(dict.fromkeys(table["phase"])) == ["model", "start", "flags", "rounds", "trace", "inference"]
    assert sent.hub == 3 + 6
    assert (table["bytes"] == 8 * table["numbers"]).all()
    each = np.where(table["to"] == "each neighbour", 4, 1)
    assert sent.numbers == (table["numbers"] * each).sum()
    assert table.loc[table["matrix"], "largest"].min() >= P * P
    words = " ".join(str(sent).split())
    assert f"about {res.rounds_needed:,.0f}, would send {P * res.rounds_needed:,.0f} numbers to each neighbour" in words
    assert max(map(len, str(sent).split("\n"))) <= 78
    assert ">numbers<" in sent._repr_html_()
    # A row of the table has the entry's counts, and its largest message a mark where it is a matrix.
    first = table.iloc[0]
    assert f"{first['messages']} {first['numbers']:,}" in words
    assert words.count("*") == table["matrix"].sum() + 1
    res.save(tmp_path / "fit.npz")
    again = ad.load(tmp_path / "fit.npz")
    assert str(again.communication()) == str(sent)
    assert str(again.summary()) == str(res.summary())


def test_the_summary_says_what_left_a_client_until_inference(model):
    res = model.fit()
    before = str(res.summary())
    table = res.communication().to_frame()
    table = table[table["phase"] != "inference"]
    numbers = int((table["numbers"] * np.where(table["to"] == "each neighbour", 4, 1)).sum())
    assert f"Until inference each client sent {numbers:,} numbers" in " ".join(before.split())
    assert str(res.summary()) == before
