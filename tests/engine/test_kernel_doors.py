"""The kernel's entries: bad sizes and indices raise, and clients in parts with halos do the rounds of the whole."""

import gc

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from adfl_stats import _kernels
from adfl_stats.engine import reference
from adfl_stats.engine.rules import RULES

M, R, P, ROWS = 5, 2, 3, 4


def ints(*values):
    return np.array(values, dtype=np.int64)


def circle(**changes):
    """Arguments of a combiner in which each client hears itself and the next one."""
    found = {
        "indptr": np.arange(0, 2 * M + 1, 2, dtype=np.int64),
        "indices": np.array([[m, (m + 1) % M] for m in range(M)], dtype=np.int64).ravel(),
        "weights": np.full(2 * M, 0.5),
    }
    return {**found, **changes}


def rows(**changes):
    rng = np.random.default_rng(0)
    found = {
        "X": rng.normal(size=(M * ROWS, P)),
        "y": rng.normal(size=M * ROWS),
        "offsets": np.arange(0, M * ROWS + 1, ROWS, dtype=np.int64),
        "totals": np.full(M, float(ROWS)),
        "family": 0,
    }
    return {**found, **changes}


def gram(**changes):
    return {"S": np.tile(np.eye(P, 4), (M, 1, 1)), "b": np.ones((M, P)), **changes}


def state(rows=M, runs=R, columns=P):
    return np.zeros((rows, runs, columns))


BAD_COMBINERS = {
    "no clients": (circle(indptr=ints(0)), ValueError, "indptr has 1 entries"),
    "empty": (circle(indptr=ints()), ValueError, "indptr has 0 entries"),
    "not from zero": (circle(indptr=ints(2, 4, 6, 8, 10)), ValueError, "indptr runs from 2 to 10"),
    "ends early": (
        circle(indptr=ints(0, 2, 4, 6, 8, 9)),
        ValueError,
        "indptr runs from 0 to 9; wanted is from 0 to 10",
    ),
    "ends late": (circle(indptr=ints(0, 2, 4, 6, 8, 2**40)), ValueError, "indptr runs from 0 to"),
    "falls": (circle(indptr=ints(0, 4, 2, 6, 8, 10)), ValueError, "client 1 has no entries of indices"),
    "jumps": (circle(indptr=ints(0, 2**40, 4, 6, 8, 10)), ValueError, "client 1 has no entries"),
    "hears nobody": (circle(indptr=ints(0, 2, 2, 6, 8, 10)), ValueError, "client 1 has no entries"),
    "few weights": (circle(weights=np.ones(9)), ValueError, r"weights.shape\[0\] is 9, wanted is 10"),
    "few marks": (circle(bad=np.zeros(9, np.uint8)), ValueError, r"bad.shape\[0\] is 9"),
    "negative": (circle(indices=ints(-1, *range(9))), IndexError, r"indices\[0\] is -1"),
    # One more than this is negative.
    "largest": (circle(indices=ints(2**63 - 1, *range(9))), IndexError, r"indices\[0\] is 9223372036854775807"),
    "rule": (circle(rule=12), ValueError, "rule=12: the codes of rules are 0 to 11"),
    "negative rule": (circle(rule=-1), ValueError, "rule=-1"),
    "known without marks": (circle(rule=8), ValueError, "give them as `bad`"),
    "count": (circle(rule=2, count=-1), ValueError, "count=-1"),
    "huge count": (circle(rule=4, count=2**62), ValueError, "count="),
    "type": (circle(indices=np.arange(10, dtype=np.int32)), ValueError, "dtype mismatch"),
    "strides": (circle(weights=np.ones(20)[::2]), ValueError, "not C-contiguous"),
    "none": (circle(indptr=None), TypeError, "indptr"),
}
BAD_ROWS = {
    "client without rows": (rows(offsets=ints(0, 4, 4, 12, 16, 20)), ValueError, "client 1 has no rows of X"),
    "rows beyond": (
        rows(offsets=ints(0, 4, 8, 12, 16, 24)),
        ValueError,
        "offsets runs from 0 to 24; wanted is from 0 to 20",
    ),
    "rows before": (rows(offsets=ints(-4, 4, 8, 12, 16, 20)), ValueError, "offsets runs from -4"),
    "few responses": (rows(y=np.zeros(19)), ValueError, r"y.shape\[0\] is 19, wanted is 20: one for each row of X"),
    "few totals": (rows(totals=np.ones(4)), ValueError, r"totals.shape\[0\] is 4"),
    "few offsets": (rows(linear_offset=np.ones(1)), ValueError, r"linear_offset.shape\[0\] is 1"),
    "few weights": (rows(row_weights=np.ones(1)), ValueError, r"row_weights.shape\[0\] is 1"),
    "metric": (rows(metric=np.eye(2)), ValueError, r"metric.shape\[0\] is 2"),
    "wide metric": (rows(metric=np.ones((3, 2))), ValueError, r"metric.shape\[1\] is 2"),
    "no columns": (rows(X=np.ones((20, 0))), ValueError, "X has 0 columns"),
    "no outputs": (rows(outputs=0), ValueError, "outputs=0"),
    # Four columns times so many outputs would be no parameters.
    "outputs": (rows(outputs=2**62), ValueError, "less than 2\\*\\*31 outputs"),
    "family": (rows(family=-1), ValueError, "family=-1"),
    "single precision": (rows(X=np.ones((20, P), np.float32)), ValueError, "dtype mismatch"),
    "order": (rows(X=np.ones((20, P), order="F")), ValueError, "not C-contiguous"),
}
BAD_GRAMS = {
    "not padded": (gram(S=np.ones((M, P, 3))), ValueError, r"S.shape\[2\] is 3; wanted is 3, padded"),
    "narrow": (gram(S=np.ones((M, 5, 4))), ValueError, r"S.shape\[2\] is 4"),
    "wide": (gram(S=np.ones((M, P, 12))), ValueError, r"S.shape\[2\] is 12"),
    "no clients": (gram(S=np.ones((0, P, 4))), ValueError, "S has 0 clients"),
    "few b": (gram(b=np.ones((4, P))), ValueError, r"b.shape\[0\] is 4"),
    "narrow b": (gram(b=np.ones((M, 2))), ValueError, r"b.shape\[1\] is 2"),
}


def cases(kinds):
    return [
        pytest.param(build, *case, id=f"{build.__name__}-{name}")
        for build, bad in kinds.items()
        for name, case in bad.items()
    ]


@pytest.mark.parametrize(
    ("build", "arguments", "error", "words"),
    cases({_kernels.Combiner: BAD_COMBINERS, _kernels.RowLoss: BAD_ROWS, _kernels.GramLoss: BAD_GRAMS}),
)
def test_objects_check_what_they_are_built_of(build, arguments, error, words):
    with pytest.raises(error, match=words):
        build(**arguments)


def round_arguments(**changes):
    found = {
        "combiner": _kernels.Combiner(**circle()),
        "loss": _kernels.RowLoss(**rows()),
        "theta": state(),
        "steps": np.full((M, R), 0.1),
        "n_rounds": 3,
        "moved": np.empty((3, R)),
        "limits": np.full(R, np.inf),
    }
    return {**found, **changes}


def state_arguments(**changes):
    found = round_arguments()
    del found["n_rounds"], found["limits"], found["moved"]
    return {**found, **changes}


def fewer(k):
    """A loss of k clients."""
    return _kernels.GramLoss(**gram(S=np.tile(np.eye(P, 4), (k, 1, 1)), b=np.ones((k, P))))


FAR = _kernels.Combiner(**circle(indices=ints(0, 2**40, *range(8))))


def gradient_arguments(k=M, theta=None, out=None):
    return {
        "loss": fewer(k),
        "theta": state() if theta is None else theta,
        "out": state() if out is None else out,
    }


def combine_arguments(**changes):
    return {"combiner": _kernels.Combiner(**circle()), "theta": state(), "out": state(), **changes}


NEAR = _kernels.Combiner(**circle(indices=ints(*[0] * 10)))
BAD_GRADIENTS = {
    # The kernel's work space was once that of the loss's clients, whatever theta's rows.
    "many rows": (gradient_arguments(2, state(5000), state(5000)), "theta.shape.0. is 5000"),
    "few rows": (gradient_arguments(theta=state(2), out=state(2)), "theta.shape.0. is 2"),
    "few out": (gradient_arguments(out=state(2)), "out.shape.0. is 2"),
    "runs of out": (gradient_arguments(out=state(runs=1)), "out.shape.1. is 1"),
    "narrow": (gradient_arguments(theta=state(columns=2)), "theta.shape.2. is 2"),
    "wide": (gradient_arguments(theta=state(columns=9)), "theta.shape.2. is 9"),
    "no runs": (gradient_arguments(theta=state(runs=0)), "no runs"),
    "no loss": ({"loss": _kernels.Loss(), "theta": state(0), "out": state(0)}, "no clients"),
}
BAD_COMBINES = {
    "few out": (combine_arguments(out=state(2)), "out.shape.0. is 2"),
    "narrow out": (combine_arguments(out=state(columns=1)), "out.shape.2. is 1"),
    "few senders": (combine_arguments(theta=state(4)), "go up to 4; theta has 4 rows"),
    "far": (combine_arguments(combiner=FAR), f"go up to {2**40}"),
}
BAD_ROUNDS = {
    "far": (round_arguments(combiner=FAR), f"go up to {2**40}"),
    "many rows": (round_arguments(theta=state(5000)), "theta.shape.0. is 5000"),
    "few rows": (round_arguments(theta=state(2)), "theta has 2 rows"),
    "clients": (round_arguments(loss=fewer(4)), "the combiner is of 5 clients, the loss of 4"),
    "columns": (round_arguments(theta=state(columns=4)), "theta.shape.2. is 4"),
    "few steps": (round_arguments(steps=np.ones((4, R))), "steps.shape.0. is 4"),
    "runs of steps": (round_arguments(steps=np.ones((M, 1))), "steps.shape.1. is 1"),
    "limits": (round_arguments(limits=np.ones(1)), "limits.shape.0. is 1"),
    "moved": (round_arguments(moved=np.ones((2, R))), "n_rounds=3; moved has room for 0 to 2"),
    "runs of moved": (round_arguments(moved=np.ones((3, 1))), "moved.shape.1. is 1"),
    "negative": (round_arguments(n_rounds=-1), "n_rounds=-1"),
}
BAD_STATES = {
    "few rows": (state_arguments(combiner=NEAR, theta=state(4)), "theta has 4 rows; wanted are 5"),
    "few senders": (state_arguments(combiner=FAR, theta=state(9)), "theta has 9 rows"),
    "columns": (state_arguments(theta=state(columns=2)), "theta.shape.2. is 2"),
    "few steps": (state_arguments(steps=np.ones((4, R))), "steps.shape.0. is 4"),
    "clip": (state_arguments(clip=0.0), "clip=0.0 and local_steps=1"),
}
CALLS = {
    _kernels.gradient: BAD_GRADIENTS,
    _kernels.combine: BAD_COMBINES,
    _kernels.rounds: BAD_ROUNDS,
    _kernels.State: BAD_STATES,
}


@pytest.mark.parametrize(("call", "arguments", "words"), cases(CALLS))
def test_calls_check_their_sizes(call, arguments, words):
    with pytest.raises((ValueError, IndexError), match=words):
        call(**arguments)


@pytest.mark.parametrize(
    "call",
    [
        lambda: _kernels.gradient(None, state(), state()),
        lambda: _kernels.combine(None, state(), state()),
        lambda: _kernels.rounds(**round_arguments(theta=None)),
        lambda: _kernels.State(**state_arguments(combiner=None)),
        lambda: _kernels.State(**state_arguments()).round(None),
        lambda: _kernels.State(**state_arguments()).write(None),
        lambda: _kernels.Combiner.__new__(_kernels.Combiner),
    ],
)
def test_nothing_is_no_argument(call):
    with pytest.raises(TypeError):
        call()


def test_a_state_checks_what_it_is_given_later():
    kept = _kernels.State(**state_arguments())
    with pytest.raises(ValueError, match=r"moved.shape.0. is 1, wanted is 2"):
        kept.round(np.empty(1))
    with pytest.raises(ValueError, match=r"theta.shape.0. is 6"):
        kept.write(state(6))
    with pytest.raises(ValueError, match=r"theta.shape.2. is 2"):
        kept.write(state(columns=2))


def test_a_state_is_of_one_instruction_set():
    """Its rows are as wide as the vectors were."""
    kept, before = _kernels.State(**state_arguments()), _kernels.instruction_set()
    if before == _kernels.instruction_set(2):
        pytest.skip("there is one instruction set")
    try:
        with pytest.raises(RuntimeError, match="the instruction set was changed"):
            kept.round(np.empty(R))
    finally:
        _kernels.instruction_set(0)


def test_the_memory_of_a_state_outlives_it():
    """As a view it keeps the state alive; a round goes on in other memory."""
    kept, moved = _kernels.State(**state_arguments(theta=np.ones((M, R, P)))), np.empty(R)
    first = np.asarray(kept)
    kept.round(moved)
    after = state()
    kept.write(after)
    second = np.asarray(kept)
    assert not np.shares_memory(first, second)
    del kept
    gc.collect()
    rows = second.reshape(M, P, -1)[:, :, :R].swapaxes(1, 2)
    assert np.array_equal(rows, after)


# ------------------------------------------------------------------ clients in parts

CLIENTS, COLUMNS, RUNS = 11, 4, 3


def network(rng):
    """CSR arrays of a random network in which every client is the first of its own pool."""
    pools = []
    for m in range(CLIENTS):
        others = rng.permutation([k for k in range(CLIENTS) if k != m])[: rng.integers(2, 6)]
        pools.append(np.concatenate([[m], others]))
    weights = [w / w.sum() for w in (rng.uniform(0.5, 1.5, len(pool)) for pool in pools)]
    return pools, weights, [(np.arange(len(pool)) % 3 == 1).astype(np.uint8) for pool in pools]


class Part:
    """Some clients with their rows, and how they hear one another and the halo."""

    def __init__(self, module, own, data, rule):
        X, y, offsets, pools, weights, bad = data
        self.own = own
        self.halo = sorted({k for m in own for k in pools[m]} - set(own))
        place = {k: i for i, k in enumerate([*own, *self.halo])}
        chosen = [slice(offsets[m], offsets[m + 1]) for m in own]
        sizes = np.array([part.stop - part.start for part in chosen])
        self.combiner = module.Combiner(
            np.concatenate([[0], np.cumsum([len(pools[m]) for m in own])]),
            np.array([place[k] for m in own for k in pools[m]], dtype=np.int64),
            np.concatenate([weights[m] for m in own]),
            *rule,
            bad=np.concatenate([bad[m] for m in own]),
        )
        self.loss = module.RowLoss(
            np.concatenate([X[part] for part in chosen]),
            np.concatenate([y[part] for part in chosen]),
            np.concatenate([[0], np.cumsum(sizes)]),
            sizes.astype(float),
            1,
        )

    def advance(self, module, theta, steps):
        """Return the part's next rows and longest moves; of theta it sees its own rows and the halo's."""
        out, moved = np.empty((len(self.own), *theta.shape[1:])), np.empty(theta.shape[1])
        state = module.State(self.combiner, self.loss, theta[[*self.own, *self.halo]], steps[self.own])
        state.round(moved)
        state.write(out)
        return out, moved


def some_data(rule, runs, seed=3):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, CLIENTS)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    X = rng.normal(size=(offsets[-1], COLUMNS))
    y = rng.integers(2, size=offsets[-1]).astype(float)
    theta, steps = rng.normal(size=(CLIENTS, runs, COLUMNS)), rng.uniform(0.05, 0.5, (CLIENTS, runs))
    return (X, y, offsets, *network(rng)), theta, steps


# Parameters for the rules, by their codes.
PARAMETERS = {2: (1,), 3: (1,), 4: (1,), 5: (0, 0.4), 7: (0, 0.3), 9: (12, 1e-6), 10: (2,), 11: (2,)}


@pytest.mark.parametrize("runs", [1, RUNS])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("code", range(len(RULES)), ids=RULES)
def test_parts_with_halos_do_the_rounds_of_the_whole(code, parts, runs):
    """To the bit: what a client does next depends on whom it hears alone, not on who else is computed beside it."""
    rule = (code, *PARAMETERS.get(code, ()))
    data, start, steps = some_data(rule, runs)
    whole = Part(_kernels, list(range(CLIENTS)), data, rule)
    together, moved = start.copy(), np.empty((6, runs))
    _kernels.rounds(whole.combiner, whole.loss, together, steps, 6, moved, np.full(runs, np.inf))
    owners = np.random.default_rng(1).permutation(CLIENTS) % parts
    pieces = [Part(_kernels, list(np.flatnonzero(owners == k)), data, rule) for k in range(parts)]
    assert any(piece.halo for piece in pieces)
    apart = start.copy()
    for t in range(6):
        after = apart.copy()
        longest = []
        for piece in pieces:
            after[piece.own], far = piece.advance(_kernels, apart, steps)
            longest.append(far)
        assert_array_equal(np.max(longest, axis=0), moved[t])
        apart = after
    assert_array_equal(apart, together)


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_round_with_a_halo_is_that_of_the_twin(code):
    rule = (code, *PARAMETERS.get(code, ()))
    data, start, steps = some_data(rule, RUNS)
    own = [7, 2, 5, 9]
    found, moved = Part(_kernels, own, data, rule).advance(_kernels, start, steps)
    wanted, far = Part(reference, own, data, rule).advance(reference, start, steps)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    np.testing.assert_allclose(moved, far, rtol=1e-12)


def test_a_move_that_is_not_finite_is_reported():
    data, start, steps = some_data((0,), 1)
    start[4] = np.nan
    part = Part(_kernels, [m for m in range(CLIENTS) if 4 in data[3][m]], data, (0,))
    assert np.isnan(part.advance(_kernels, start, steps)[1]).all()
