"""The walk over the partitions: one exact partition at a time, in shuffled order."""

from __future__ import annotations

from random import Random


class PartitionWalk:
    """Gives one partition after another and knows when all of them came up empty.

    The order is reshuffled when it is used up. What counts is *distinct* partitions since the last hit, not attempts:
    a reshuffle may give a partition twice before another one once, and counting attempts would then step over a
    partition that holds the only due record.
    """

    def __init__(self, partitions: int, random: Random) -> None:
        self._partitions = partitions
        self._random = random
        self._order: list[int] = []
        self._empty: set[int] = set()

    def next(self) -> int:
        """Return the partition to ask now."""
        if not self._order:
            self._order = self._random.sample(range(self._partitions), self._partitions)
        return self._order.pop()

    def hit(self) -> None:
        """A claim won something, or might have: nothing is known to be empty any more."""
        self._empty.clear()

    def came_up_empty(self, partition: int) -> None:
        """A claim found nothing in ``partition``."""
        self._empty.add(partition)

    @property
    def all_empty(self) -> bool:
        """Whether every distinct partition came up empty since the last hit."""
        return len(self._empty) == self._partitions
