"""What a check is, what it looks at, and what it says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from gangline.store.capabilities import Capabilities
from gangline.store.connection import Connection
from gangline.store.diagnosis.waiting import WaitingNames
from gangline.store.registry import PUBLISH_EVERY, Registry, WorkerEntry

COUNT_UP_TO = 10_000
SHOWN_NAMES = 10

_GONE_AFTER = 3 * PUBLISH_EVERY  # the server deletes the entries of killed workers with some delay


class Status(StrEnum):
    """How a check came out, from good to bad."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True)
class Verdict:
    """What a check found, and what helps; nothing helps what is well."""

    status: Status
    detail: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check with its verdict."""

    name: str
    status: Status
    detail: str
    remedy: str

    @classmethod
    def of(cls, name: str, verdict: Verdict) -> Check:
        """Return the check ``name`` with ``verdict``."""
        return cls(name=name, status=verdict.status, detail=verdict.detail, remedy=verdict.remedy)


def well(detail: str) -> Verdict:
    """All is well."""
    return Verdict(Status.OK, detail)


def warning(detail: str, remedy: str) -> Verdict:
    """Something should be looked at."""
    return Verdict(Status.WARNING, detail, remedy)


def broken(detail: str, remedy: str) -> Verdict:
    """Jobs do not run, or not as promised."""
    return Verdict(Status.BROKEN, detail, remedy)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is known of the queue from outside it: the number of partitions, and the types of jobs by name."""

    partitions: int | None = None
    jobs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What the checks look at."""

    connection: Connection
    capabilities: Capabilities
    expected: Expected
    skew: timedelta
    now: datetime
    workers: Sequence[WorkerEntry]
    waiting: WaitingNames

    @property
    def served(self) -> frozenset[str]:
        """The job names that running workers serve."""
        return frozenset(name for worker in self.workers for name in worker.jobs)

    @property
    def definitions(self) -> Mapping[str, frozenset[str]]:
        """The types that each known job name is defined with."""
        types: defaultdict[str, set[str]] = defaultdict(set)
        for jobs in [self.expected.jobs, *(worker.jobs for worker in self.workers)]:
            for name, kind in jobs.items():
                types[name].add(kind)
        return {name: frozenset(kinds) for name, kinds in types.items()}

    @property
    def partitions(self) -> int | None:
        """The number of partitions: as expected, or the largest that a worker runs with."""
        return self.expected.partitions or largest_partitions(self.workers)


def largest_partitions(workers: Iterable[WorkerEntry]) -> int | None:
    """Return the largest number of partitions among ``workers``: beyond it no claim asks."""
    return max((worker.partitions for worker in workers), default=None)


async def running_workers(connection: Connection) -> list[WorkerEntry]:
    """Return the entries of the workers that were seen lately, by name."""
    await connection.ensure_server_time()
    oldest = connection.clock.now() - _GONE_AFTER
    workers = await Registry(connection).workers()
    return [worker for worker in workers if worker.seen_at is not None and worker.seen_at > oldest]


def counted(number: int) -> str:
    """Return a count that stops at 10,000 as text."""
    return f"{number:,} or more" if number >= COUNT_UP_TO else f"{number:,}"


def listed(counts: Mapping[str, int]) -> str:
    """Return the largest of ``counts`` as text."""
    shown = ", ".join(f"{name} {counted(count)}" for name, count in Counter(counts).most_common(SHOWN_NAMES))
    return f"{shown}, …" if len(counts) > SHOWN_NAMES else shown
