"""Changing the number of partitions while the queue is in use: nothing is lost, and nothing runs twice."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gangline import Context, Gangline
from gangline.handles import EventJob
from support.apps import Raw, eventually, running
from support.queues import node_record

PATIENCE = 240.0  # 20,000 jobs on a machine that others use too


@dataclass
class Rollout:
    """Programs with different numbers of partitions on one queue: what they scheduled, and what ran."""

    uri: str
    ids: set[str] = field(default_factory=set)
    runs: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def release(self, partitions: int) -> AsyncIterator["Release"]:
        """A program with so many partitions."""
        async with Gangline(self.uri, partitions=partitions) as app:

            @app.event()
            async def work(ctx: Context) -> None:
                self.runs[ctx.id] += 1

            yield Release(self, app, work)

    async def progress(self, jobs: int) -> None:
        """Wait until so many more have run."""
        goal = self.runs.total() + jobs
        await eventually(lambda: self.runs.total() >= goal, deadline=PATIENCE)


@dataclass(frozen=True)
class Release:
    """One program: it schedules and has workers."""

    rollout: Rollout
    app: Gangline
    work: EventJob[..., ..., Any]

    async def schedule(self, jobs: int) -> None:
        outcomes = await self.app.schedule_many([self.work.call() for _ in range(jobs)])
        self.rollout.ids |= {outcome.id for outcome in outcomes if outcome.id is not None}

    async def start(self, stack: AsyncExitStack, *, workers: int = 2) -> None:
        for _ in range(workers):
            await stack.enter_async_context(running(self.app, concurrency=200, max_batch=100))


def insert_unpartitioned(raw: Raw, jobs: int) -> set[str]:
    """Schedule as a program does that knows no partitions."""
    records = [node_record("work") for _ in range(jobs)]
    for record in records:
        del record["partition"]
    raw.records.insert_many(records)
    return {record["_id"] for record in records}


def outside(raw: Raw, partitions: int) -> int:
    return raw.records.count_documents({"partition": {"$not": {"$gte": 0, "$lt": partitions}}, "lockedUntil": None})


@pytest.mark.timeout(300)
async def test_from_1_to_16_to_4_partitions_nothing_is_lost_and_nothing_runs_twice(uri: str, raw: Raw) -> None:
    """20,000 jobs; at each change the old and the new workers run side by side for a while."""
    rollout = Rollout(uri)
    async with rollout.release(1) as one, rollout.release(16) as sixteen, rollout.release(4) as four:
        await one.schedule(6_000)
        async with AsyncExitStack() as newer:
            async with AsyncExitStack() as old:
                await one.start(old)
                await rollout.progress(1_000)
                rollout.ids |= insert_unpartitioned(raw, 1_000)
                await sixteen.schedule(7_000)
                await sixteen.start(newer)
                await rollout.progress(1_000)
            await rollout.progress(1_000)
            await sixteen.schedule(4_000)
            async with AsyncExitStack() as newest:
                await four.start(newest)
                await newer.aclose()
                assert outside(raw, 4), "the last workers have nothing to repair"
                await four.schedule(2_000)
                await eventually(raw.empty, deadline=PATIENCE)
    assert len(rollout.ids) == 20_000
    assert rollout.runs == Counter(dict.fromkeys(rollout.ids, 1))
    entries = raw.history.find({}, {"_id": 0, "jobId": 1, "status": 1})
    assert Counter((entry["jobId"], entry["status"]) for entry in entries) == Counter(
        {(record, "success"): 1 for record in rollout.ids}
    )
