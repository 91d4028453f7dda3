"""What a benchmark tells: rows of figures, and its progress while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a benchmark's table. A subclass has the figures; their names are those of the JSON.

    Attributes:
        verified: whether every correctness check of the row held.
        problems: what did not hold.
    """

    problems: Sequence[str] = ()

    @property
    def verified(self) -> bool:
        """Whether every correctness check of the row held."""
        return not self.problems


class Progress(Protocol):
    """Is told how far a benchmark is."""

    def begin(self, stage: str, total: int) -> None:
        """Begin a stage of ``total`` steps."""

    def reach(self, done: int) -> None:
        """Tell that ``done`` steps of the stage are done."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of ``values`` do not exceed (nearest rank); 0 if there is none.

    >>> quantile([3.0, 1.0, 2.0, 4.0], 0.5)
    2.0
    """
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else 0.0
