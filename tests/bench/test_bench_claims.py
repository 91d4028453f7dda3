"""The contest of claims: each strategy gives every record out once, and a wrong result is told. Never how fast."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gangline.bench import claims
from gangline.bench.claims import STRATEGIES, ClaimsRow, Contest, Won
from gangline.bench.queue import due_records, fill, job_id, opened, start_over
from gangline.jobs.errors import ConfigurationError
from support.progress import Recorded

CONTEST = Contest(strategy="batch", jobs=120, claimers=6, partitions=4, batch=1, processes=2, seconds=60.0)
PLAIN_SERVER = [name for name in STRATEGIES if name not in claims.SORTED]


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("strategy", PLAIN_SERVER)
def test_every_record_is_claimed_once(uri: str, strategy: str, batch: int) -> None:
    progress = Recorded()
    row = claims.measure(uri, replace(CONTEST, strategy=strategy, batch=batch), progress)
    assert row.verified, row.problems
    assert (row.claims, row.duplicates, row.cut) == (120, 0, False)
    assert (row.strategy, row.partitions, row.claimers, row.batch, row.processes) == (strategy, 4, 6, batch, 2)
    assert row.seconds > 0
    assert row.claims_per_second == pytest.approx(120 / row.seconds)
    assert row.docs_examined_per_claim >= 1
    assert progress.stages == [(f"{strategy}, 4 partitions", 120)]
    assert progress.reached[-1] == 120


@pytest.mark.parametrize("strategy", sorted(claims.SORTED))
def test_sorted_updates_claim_too(sorted_uri: str, strategy: str) -> None:
    row = claims.measure(sorted_uri, replace(CONTEST, strategy=strategy, jobs=12, claimers=1, processes=1), Recorded())
    assert row.verified, row.problems
    assert row.claims == 12


def test_the_reference_walks_over_what_is_claimed_and_gangline_does_not(uri: str) -> None:
    alone = replace(CONTEST, jobs=400, claimers=1, processes=1, partitions=1)
    ours = claims.measure(uri, replace(alone, strategy="find-and-modify"), Recorded())
    theirs = claims.measure(uri, replace(alone, strategy="dogs"), Recorded())
    assert ours.docs_examined_per_claim < 3
    assert theirs.docs_examined_per_claim > 100


def test_a_row_that_takes_too_long_is_cut(uri: str) -> None:
    row = claims.measure(uri, replace(CONTEST, jobs=5_000, seconds=0.0), Recorded())
    assert row.cut
    assert row.claims < 5_000
    assert row.verified, row.problems


@pytest.mark.parametrize("strategy", ["fastest", "sorted-update", "dogs-sorted-update"])
def test_what_cannot_be_measured_is_refused(strategy: str) -> None:
    with pytest.raises(ConfigurationError, match="strategy"):
        claims.check(replace(CONTEST, strategy=strategy), sorted_updates=False)


ROW = ClaimsRow(
    strategy="find-and-modify",
    partitions=2,
    claimers=1,
    batch=1,
    processes=1,
    claims=2,
    seconds=1.0,
    claims_per_second=2.0,
    conflicts=0,
    conflicts_per_claim=0.0,
    docs_examined_per_claim=1.0,
    client_cpu_seconds=0.0,
    server_cpu_seconds=0.0,
    duplicates=0,
    cut=False,
)
A, B = (job_id(0), "a"), (job_id(1), "b")


@pytest.mark.parametrize(
    ("won", "stored", "tries", "expected"),
    [
        ([A, B], [A, B], 1, []),
        ([A, B, A], [A, B], 1, ["the same record was given to more than one claim, 1 times", "the same execution id"]),
        ([A, (B[0], "a")], [A, (B[0], "a")], 1, ["the same execution id", "two records are stored with one lock id"]),
        ([A], [A, B], 1, ["1 claims differ from what is stored"]),
        ([A, B], [A, B], 2, ["2 records have not exactly one try"]),
        ([A], [A], 1, ["1 records were left"]),
    ],
    ids=["right", "doubled", "one lock id", "not told", "overcharged", "left"],
)
def test_what_is_wrong_is_told(uri: str, won: Won, stored: Won, tries: int, expected: Sequence[str]) -> None:
    async def look() -> ClaimsRow:
        async with opened(uri) as connection:
            await start_over(connection, plain=False)
            await fill(connection, due_records(2, 2))
            for record, lock in stored:
                fields = {"lockId": lock, "lockedUntil": connection.clock.now(), "tries": tries}
                await connection.records.update_one({"_id": record}, {"$set": fields})
        return await claims._verified(uri, ROW, won)

    problems = asyncio.run(look()).problems
    assert len(problems) == len(expected)
    assert all(problem.startswith(start) for problem, start in zip(problems, expected, strict=True))
