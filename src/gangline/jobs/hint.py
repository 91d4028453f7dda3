"""Which of the two acquisition shapes a worker uses: a pure decision over measured samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low

WINS_NEEDED = 2


class Shape(StrEnum):
    """The two ways to reach the next record.

    By name an index entry costs one seek for each job name that the worker serves; by priority it costs a step over
    each record of a name that it does not serve.
    """

    BY_NAME = "by-name"
    BY_PRIORITY = "by-priority"


@dataclass(frozen=True, slots=True)
class Sample:
    """What the server spent on one probe: time, and index keys plus documents examined."""

    milliseconds: int
    examined: int


def cheaper(samples: Mapping[Shape, Sequence[Sample]], current: Shape) -> Shape:
    """Return the shape with the lower median of time; among equals that of less work; among equals ``current``.

    Healthy plans all take 0 ms, so it is mostly the work that decides.
    """

    def cost(shape: Shape) -> tuple[int, int, bool]:
        time = median_low(sample.milliseconds for sample in samples[shape])
        work = median_low(sample.examined for sample in samples[shape])
        return time, work, shape is not current

    return min(Shape, key=cost)


@dataclass(frozen=True, slots=True)
class HintChoice:
    """The shape in use, and how the last probes came out.

    The first probe decides at once; later ones need two wins in a row, so that one noisy probe changes nothing.
    """

    shape: Shape = Shape.BY_NAME
    probed: bool = False
    challenger_wins: int = 0

    def after(self, winner: Shape) -> HintChoice:
        """Return the choice after a probe that ``winner`` won."""
        if winner is self.shape:
            return HintChoice(self.shape, probed=True)
        wins = self.challenger_wins + 1
        if self.probed and wins < WINS_NEEDED:
            return HintChoice(self.shape, probed=True, challenger_wins=wins)
        return HintChoice(winner, probed=True)
