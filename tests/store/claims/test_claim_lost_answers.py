"""A claim whose answer is lost may have taken effect: it is resolved by reading back its tokens, never by guessing."""

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, PyMongoError, ServerSelectionTimeoutError

from store.claims.conftest import Subject
from support.records import Queue, fail_command, locked_until, losing_the_answer, never_sent, wrapped

WRITE_CONCERN_FAILED = 64
LIMITS = pytest.mark.parametrize("limit", [1, 3])


def unreachable(*_args: Any, **_kwargs: Any) -> Any:
    """A read while the server is away."""
    raise ServerSelectionTimeoutError("the server is away")


def failing(subject: Subject, limit: int, fail: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """The protocol with a failing write."""
    write = subject.write(limit)
    return subject.protocol(wrapped(subject.records, {write: fail(getattr(subject.records, write))}))


def skip_on_stand_in(subject: Subject, given_server_sorts: bool) -> None:
    if subject.name == "sorted-update" and not given_server_sorts:
        pytest.skip("the stand-in fails no commands on demand: GANGLINE_TEST_URI must name a MongoDB 8 or later")


@LIMITS
async def test_what_was_won_is_found_after_the_answer_was_lost(subject: Subject, limit: int) -> None:
    ids = await subject.insert_all([{"_id": name} for name in "abcde"])
    claims = await failing(subject, limit, losing_the_answer).claim(subject.request(limit=limit))
    won = 1 if subject.one_at_a_time else limit
    assert [record.id for record in claims.records] == ids[:won], "the best come first"
    for record in claims.records:
        document = await subject.stored(record.id)
        assert (document["lockId"], document["tries"]) == (record.lease.lock_id, 1)
    assert await subject.records.count_documents({"lockId": None}) == len(ids) - won


@LIMITS
async def test_a_claim_that_won_nothing_raises_its_error_again(subject: Subject, limit: int) -> None:
    await subject.insert_all([{}] * 3)
    with pytest.raises(AutoReconnect, match="never sent"):
        await failing(subject, limit, lambda _: never_sent).claim(subject.request(limit=limit))
    assert await subject.records.count_documents({"lockId": None}) == 3


@LIMITS
async def test_what_others_hold_is_not_taken_for_ones_own(subject: Subject, limit: int) -> None:
    await subject.insert_all([locked_until(subject.now) for _ in range(3)])
    await subject.insert()
    with pytest.raises(AutoReconnect, match="never sent"):
        await failing(subject, limit, lambda _: never_sent).claim(subject.request(limit=limit))


@LIMITS
async def test_a_read_back_that_fails_too_raises_the_error_of_the_claim(subject: Subject, limit: int) -> None:
    await subject.insert_all([{}] * 3)
    write = subject.write(limit)
    replacements: dict[str, Callable[..., Any]] = {}
    records = wrapped(subject.records, replacements)

    async def lose_all_from_here(*args: Any, **kwargs: Any) -> Any:
        replacements["find"] = unreachable
        await losing_the_answer(getattr(subject.records, write))(*args, **kwargs)

    replacements[write] = lose_all_from_here
    with pytest.raises(AutoReconnect, match="the answer was lost"):
        await subject.protocol(records).claim(subject.request(limit=limit))


@LIMITS
async def test_a_claim_that_the_server_could_not_confirm_is_read_back(
    subject: Subject, limit: int, given_server_sorts: bool
) -> None:
    skip_on_stand_in(subject, given_server_sorts)
    await subject.insert_all([{}] * 3)
    error = {"code": WRITE_CONCERN_FAILED, "errmsg": "no majority in time"}
    with fail_command(subject.uri, failCommands=["update", "findAndModify"], writeConcernError=error):
        claims = await subject.take(limit=limit)
    assert len(claims.records) == (1 if subject.one_at_a_time else limit)
    assert await subject.records.count_documents({"lockId": None}) == 3 - len(claims.records)


@LIMITS
async def test_a_command_whose_connection_breaks_is_sent_again(
    subject: Subject, limit: int, given_server_sorts: bool
) -> None:
    """Case 43, for a moment: at most one try is charged."""
    skip_on_stand_in(subject, given_server_sorts)
    await subject.insert_all([{}] * 3)
    first = {"find_one_and_update": "findAndModify", "update_many": "find", "bulk_write": "update"}
    with fail_command(subject.uri, failCommands=[first[subject.write(limit)]], closeConnection=True):
        claims = await subject.take(limit=limit)
    assert len(claims.records) == (1 if subject.one_at_a_time else limit)
    assert {record.tries for record in claims.records} == {1}


async def test_a_batch_whose_connection_breaks_before_the_write_raises(queue: Queue) -> None:
    batch = Subject(queue.connection, "batch")
    await batch.insert_all([{}] * 3)
    with (
        fail_command(batch.uri, failCommands=["update"], closeConnection=True),
        pytest.raises(PyMongoError),
    ):
        await batch.take(limit=3)
    assert await batch.records.count_documents({"lockId": None}) == 3


async def test_a_take_over_whose_answer_was_lost_is_read_back(queue: Queue) -> None:
    ids = [await queue.insert_expired(), await queue.insert_expired()]
    records = wrapped(queue.records, {"update_many": losing_the_answer(queue.records.update_many)})
    taken = await queue.take_over(records=records)
    assert {record.id for record in taken.records} == set(ids) == set(taken.left)
    assert all(record.was_stale for record in taken.records)
