"""Claims of many records and of large ones: the server answers in pieces, and none may be left locked and not run."""

from datetime import timedelta

from gangline.store.claims.protocol import read_back
from store.claims.conftest import Subject
from support.records import Queue, locked_until

MANY = 150  # more than the 101 documents of a cursor's first answer


async def test_one_batch_takes_as_many_as_it_may(queue: Queue) -> None:
    due = await queue.insert_all([{}] * MANY)
    claims = await Subject(queue.connection, "batch").take(limit=MANY)
    assert {record.id for record in claims.records} == set(due)


async def test_a_read_back_of_many_gives_them_all(queue: Queue) -> None:
    end = queue.now + timedelta(minutes=1)
    tokens = [f"token-{number:03}" for number in range(MANY)]
    await queue.insert_all([locked_until(end, lockId=token) for token in tokens])
    assert [record.lease.lock_id for record in await read_back(queue.records, tokens)] == tokens


async def test_a_claim_of_more_than_an_answer_holds_gives_all_that_it_locked(queue: Queue) -> None:
    large = {"params": {"blob": bytes(1_500_000)}}
    due = await queue.insert_all([large] * 12)
    claims = await Subject(queue.connection, "batch").take(limit=12)
    assert {record.id for record in claims.records} == set(due)


async def test_a_recovery_of_many_gives_all_that_it_locked(queue: Queue) -> None:
    ended = queue.now - timedelta(seconds=1)
    expired = await queue.insert_all([locked_until(ended) for _ in range(MANY)])
    assert {record.id for record in (await queue.take_over(MANY)).records} == set(expired)
