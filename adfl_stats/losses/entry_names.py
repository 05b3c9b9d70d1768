"""Names of parameters, made when they are asked for: those of a large network would take more memory than itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any, NamedTuple, overload

import numpy as np

__all__ = ["Block", "EntryNames", "all_distinct", "block_of", "kept_names"]


class Block(NamedTuple):
    """An array of parameters: the entry at (i, j) is called ``before + "i, j" + after``."""

    before: str
    shape: tuple[int, ...]
    after: str


def block_of(name: str, shape: tuple[int, ...]) -> Block:
    """Return the block of an array: ``name[i, j]`` for its entries, ``name`` for a single number."""
    return Block(f"{name}[", shape, "]") if shape else Block(name, (), "")


class EntryNames(Sequence[str]):
    """The names of the entries of some arrays, one array after the other, as a sequence that holds none of them.

    Parameters
    ----------
    blocks : sequence of (str, tuple of int, str)
        What stands before an entry's place, the array's shape, and what stands after its place.

    Examples
    --------
    >>> names = EntryNames([block_of("weight", (2, 3)), block_of("offset", ())])
    >>> len(names), names[4], names[-1]
    (7, 'weight[1, 1]', 'offset')
    """

    def __init__(self, blocks: Sequence[tuple[str, Sequence[int], str]]) -> None:
        self.blocks = tuple(Block(before, tuple(shape), after) for before, shape, after in blocks)
        self._ends = np.cumsum([prod(block.shape) for block in self.blocks], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        places = range(len(self))[at]
        return self._name(places) if isinstance(places, int) else [self._name(place) for place in places]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(_labels(block) for block in self.blocks)

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, EntryNames):
            return self.blocks == other.blocks
        return isinstance(other, (list, tuple)) and len(self) == len(other) and all(map(str.__eq__, self, other))

    def __repr__(self) -> str:
        return f"EntryNames({list(self.blocks)})"

    @property
    def distinct_arrays(self) -> bool:
        """Whether the arrays' names say that no two entries have one name."""
        different = len({block.before for block in self.blocks}) == len(self.blocks)
        # A single number may have the name of another array's entry.
        return different and not any("[" in block.before for block in self.blocks if not block.shape)

    def _name(self, place: int) -> str:
        which = int(np.searchsorted(self._ends, place, side="right"))
        block = self.blocks[which]
        within = np.unravel_index(place - (self._ends[which] - prod(block.shape)), block.shape)
        return f"{block.before}{', '.join(map(str, within))}{block.after}"


def _labels(block: Block) -> Iterator[str]:
    return (f"{block.before}{', '.join(map(str, at))}{block.after}" for at in np.ndindex(*block.shape))


def kept_names(names: Sequence[str]) -> Sequence[str]:
    """Return the names as they are where they take no memory, else a list of them."""
    return names if isinstance(names, EntryNames) else list(names)


def all_distinct(names: Sequence[str]) -> bool:
    """Return whether no two parameters have one name; arrays with names of their own are not looked into."""
    if isinstance(names, EntryNames) and names.distinct_arrays:
        return True
    return len(set(names)) == len(names)
