"""The walk over the partitions: one exact partition at a time, in shuffled order."""

from __future__ import annotations

from random import Random


class PartitionWalk:
    """Gives one partition after another: each once a cycle, and every cycle in a new order.

    The order is shuffled, so that schedulers do not queue up behind one another at the same partition.
    """

    def __init__(self, partitions: int, random: Random) -> None:
        self._partitions = partitions
        self._random = random
        self._order: list[int] = []

    def next(self) -> int:
        """Return the partition to ask now."""
        if not self._order:
            self._order = self._random.sample(range(self._partitions), self._partitions)
        return self._order.pop()
