"""Free places for executions, in all and per job name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gangline.jobs.definition import JobDefinition


@dataclass(frozen=True, kw_only=True)
class Room:
    """What may be claimed now.

    Attributes:
        limit: how many records in all; zero when every slot is taken.
        names: the job names that have room.
        caps: for those with a limit of their own, how many.
        complete: whether every configured name has room.
    """

    limit: int
    names: Sequence[str]
    caps: Mapping[str, int]
    complete: bool


class Slots:
    """Counts the executions of one worker. Claims never exceed the room it tells."""

    def __init__(self, concurrency: int, jobs: Sequence[JobDefinition], *, freed: Callable[[], None]) -> None:
        """``freed`` is called when a slot becomes free."""
        self._concurrency = concurrency
        self._names = tuple(sorted(job.name for job in jobs))
        self._limits = {job.name: job.max_parallel for job in jobs if job.max_parallel is not None}
        self._taken: Counter[str] = Counter()
        self._freed = freed

    def room(self) -> Room:
        """Return what may be claimed now."""
        if not self._limits:
            return Room(limit=self.free, names=self._names, caps={}, complete=True)
        caps = {name: limit - self._taken[name] for name, limit in self._limits.items()}
        names = [name for name in self._names if caps.get(name, 1) > 0]
        open_caps = {name: left for name, left in caps.items() if left > 0}
        limit = self.free if names else 0
        return Room(limit=limit, names=names, caps=open_caps, complete=len(names) == len(self._names))

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self._concurrency - self._taken.total()

    def take(self, name: str) -> Slot:
        """Take a slot for an execution of ``name``."""
        self._taken[name] += 1
        return Slot(self, name)

    def give_back(self, name: str) -> None:
        """Free a slot; :meth:`Slot.release` calls it once."""
        self._taken[name] -= 1
        self._freed()


class Slot:
    """One taken place."""

    def __init__(self, slots: Slots, name: str) -> None:
        self._slots: Slots | None = slots
        self._name = name

    def release(self) -> None:
        """Free the place. A second call does nothing."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.give_back(self._name)
