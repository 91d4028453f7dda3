"""Claims before a backlog, and a worker's memory: what is in front is never claimed, and a wrong result is told."""

from dataclasses import replace
from typing import Any

import pytest

from gangline.bench import growth
from gangline.bench.claims import Won
from gangline.bench.growth import Backlog, Endurance, GrowthRow, MemoryRow, with_ratios
from gangline.bench.queue import due_records, fill, job_id, opened, start_over
from gangline.jobs.errors import ConfigurationError
from support.progress import Recorded

BACKLOG = Backlog(
    strategy="batch", waiting=60, claims=90, claimers=2, batch=4, partitions=3, seconds=60.0, locked=9, dead=9, future=9
)


@pytest.mark.parametrize("strategy", ["batch", "find-and-modify", "by-limit", "dogs"])
def test_what_waits_is_claimed_and_what_is_in_front_is_not(uri: str, strategy: str) -> None:
    progress = Recorded()
    row = growth.measure(uri, replace(BACKLOG, strategy=strategy), progress)
    assert row.verified, row.problems
    assert (row.strategy, row.waiting, row.locked, row.dead, row.future) == (strategy, 60, 9, 9, 9)
    assert 90 <= row.claims < 90 + 30 + 2 * 4  # the last round may have begun with one claim missing
    assert row.claims_per_second == pytest.approx(row.claims / row.seconds)
    assert row.docs_examined_per_claim >= 1
    assert not row.cut
    title = f"{strategy}, 60 waiting behind 9 locked and 9 dead and 9 future"
    assert progress.stages == [(f"{title}: filling", 87), (f"{title}: claims", 90)]
    assert progress.reached[-1] == 90


def test_the_reference_walks_over_what_is_in_front_and_gangline_does_not(uri: str) -> None:
    behind = replace(BACKLOG, locked=300, dead=300, future=0, partitions=1, claimers=1, batch=1, claims=30)
    ours = growth.measure(uri, replace(behind, strategy="find-and-modify"), Recorded())
    theirs = growth.measure(uri, replace(behind, strategy="dogs"), Recorded())
    assert ours.docs_examined_per_claim < 3
    assert theirs.docs_examined_per_claim > 600


def test_a_row_that_takes_too_long_is_cut(uri: str) -> None:
    row = growth.measure(uri, replace(BACKLOG, seconds=0.0), Recorded())
    assert row.cut
    assert row.verified, row.problems


@pytest.mark.parametrize("strategy", ["fastest", "limit", "sorted-update"])
def test_what_cannot_be_measured_is_refused(strategy: str) -> None:
    with pytest.raises(ConfigurationError, match="strategy"):
        growth.check(replace(BACKLOG, strategy=strategy), sorted_updates=False)


ROW = GrowthRow(
    strategy="batch",
    waiting=10,
    locked=0,
    dead=0,
    future=0,
    partitions=1,
    claimers=1,
    batch=1,
    claims=10,
    seconds=1.0,
    claims_per_second=10.0,
    docs_examined_per_claim=3.0,
    client_cpu_seconds=0.1,
    server_cpu_seconds=0.1,
    cut=False,
)


def test_rows_are_compared_with_the_first_of_their_strategy() -> None:
    other = replace(ROW, strategy="dogs", claims_per_second=4.0)
    rows = with_ratios([ROW, replace(ROW, claims_per_second=5.0), other, replace(other, claims_per_second=1.0)])
    assert [row.ratio_to_first for row in rows] == [1.0, 0.5, 1.0, 0.25]


A, B, DEAD = (job_id(0), "a"), (job_id(1), "b"), (f"dead-{job_id(0)}", "c")


@pytest.mark.parametrize(
    ("told", "stored", "tries", "expected"),
    [
        ([A, B], [A, B], 1, []),
        ([A, A], [A], 1, ["a record, or a lock id, was given to more than one claim"]),
        ([A, (B[0], "c")], [A, B], 1, ["claims differ from what is stored"]),
        ([A], [A], 2, ["a record has not exactly one try"]),
        ([A, DEAD], [A, DEAD], 1, ["a record was claimed that is locked, dead or not due"]),
        ([A], [A, B], 1, ["records are locked that no claim was told of"]),
    ],
    ids=["right", "doubled", "different", "overcharged", "in front", "not told"],
)
async def test_what_is_wrong_is_told(uri: str, told: Won, stored: Won, tries: int, expected: list[str]) -> None:
    backlog = replace(BACKLOG, locked=2, dead=1, future=0, waiting=2)
    async with opened(uri) as connection:
        await start_over(connection, plain=False)
        await fill(connection, growth._records(backlog, connection))
        for record, lock in stored:
            fields: dict[str, Any] = {"lockId": lock, "lockedUntil": connection.clock.now(), "tries": tries}
            await connection.records.update_one({"_id": record}, {"$set": fields})
        assert await growth._deviations(connection, backlog, told) == expected


ENDURANCE = Endurance(jobs=100, history=True, concurrency=8, partitions=2, seconds=60.0)


@pytest.mark.parametrize("history", [True, False])
def test_the_memory_of_a_worker_is_told_after_each_tenth(
    uri: str, history: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_PORTION", 30)
    progress = Recorded()
    row = growth.measure_memory(uri, replace(ENDURANCE, history=history), progress)
    assert row.verified, row.problems
    assert (row.jobs, row.history, row.cut) == (100, history, False)
    assert row.rss_rest_mb > 10
    assert len(row.rss_after_tenths_mb) == 10
    assert row.rss_growth_mb == row.rss_after_tenths_mb[9] - row.rss_after_tenths_mb[1]
    assert progress.stages == [(f"memory, history {'on' if history else 'off'}", 100)]
    assert progress.reached[-1] == 100


def test_a_worker_that_takes_too_long_is_cut(uri: str) -> None:
    row = growth.measure_memory(uri, replace(ENDURANCE, jobs=20_000, seconds=0.0), Recorded())
    assert row.cut
    assert row.verified, row.problems


async def test_what_is_left_or_not_in_the_history_is_told(uri: str) -> None:
    row = MemoryRow(
        jobs=100,
        history=True,
        seconds=1.0,
        jobs_per_second=100.0,
        rss_rest_mb=40.0,
        rss_after_tenths_mb=[],
        rss_growth_mb=0.0,
        cut=False,
    )
    async with opened(uri) as connection:
        await start_over(connection, plain=False)
        await fill(connection, due_records(1, 1))
    assert (await growth._verified(uri, ENDURANCE, row)).problems == [
        "100 jobs were inserted, 100 started, 1 are left",
        "the history has 0 executions of 100 jobs",
    ]
