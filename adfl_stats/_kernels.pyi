import numpy as np
from numpy.typing import NDArray

HAS_OPENMP: bool

def instruction_set(lanes: int = -1) -> str: ...

class Combiner:
    n_clients: int
    n_senders: int
    widest: int
    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int64],
        weights: NDArray[np.float64],
        rule: int = 0,
        count: int = 0,
        value: float = 0.0,
        bad: NDArray[np.uint8] | None = None,
    ) -> None: ...

class Loss:
    n_clients: int
    n_columns: int
    outputs: int
    flops: float

class RowLoss(Loss):
    def __init__(
        self,
        X: NDArray[np.float64],
        y: NDArray[np.float64],
        offsets: NDArray[np.int64],
        totals: NDArray[np.float64],
        family: int,
        par: float = 0.0,
        outputs: int = 1,
        linear_offset: NDArray[np.float64] | None = None,
        row_weights: NDArray[np.float64] | None = None,
        metric: NDArray[np.float64] | None = None,
        ridge: NDArray[np.float64] | None = None,
        row_bounds: NDArray[np.float64] | None = None,
    ) -> None: ...

class GramLoss(Loss):
    def __init__(self, S: NDArray[np.float64], b: NDArray[np.float64], symmetric: bool = False) -> None: ...

def combine(combiner: Combiner, theta: NDArray[np.float64], out: NDArray[np.float64]) -> None: ...
def gradient(loss: Loss, theta: NDArray[np.float64], out: NDArray[np.float64], threads: int = 1) -> None: ...
def rounds(
    combiner: Combiner,
    loss: Loss,
    theta: NDArray[np.float64],
    steps: NDArray[np.float64],
    n_rounds: int,
    moved: NDArray[np.float64],
    limits: NDArray[np.float64],
    threads: int = 1,
    clip: float = ...,
    local_steps: int = 1,
) -> int: ...

class State:
    def __init__(
        self,
        combiner: Combiner,
        loss: Loss,
        theta: NDArray[np.float64],
        steps: NDArray[np.float64],
        threads: int = 1,
        clip: float = ...,
        local_steps: int = 1,
    ) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def round(self, moved: NDArray[np.float64]) -> None: ...
    def write(self, theta: NDArray[np.float64]) -> None: ...
