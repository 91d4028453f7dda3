"""Scheduling: new records, in bulk, with an outcome for each in its order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import bson
import uuid_utils
from bson import CodecOptions
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from gangline.jobs.errors import AlreadyScheduled, InvalidParams, RecordTooLarge, SchedulingError
from gangline.jobs.outcome import END_OF_TIME
from gangline.jobs.record import JobType
from gangline.jobs.scheduling import JobCall, Scheduled, ScheduleStatus
from gangline.store.connection import CODEC, Connection, Document
from gangline.store.history import DUPLICATE_KEY, MAX_DOCUMENT_BYTES
from gangline.store.indexes import ensure_unique_identifiers
from gangline.store.schema import DEAD

_MAX_ROUNDS = 10
_PORTION = 2_500  # jobs in one insert: each waits once for the majority
_BREATH = 100  # jobs encoded, in about two milliseconds, before others on the event loop have their turn
# A claim adds its lease to the record and a failure its trace, of 20,000 characters at most: a record at the server's
# very limit could be stored but never claimed, and would fail every claim of its partition.
_MAX_RECORD_BYTES = MAX_DOCUMENT_BYTES - 128 * 1024
_KEPT = ("_id", "uniqueIdentifier", "partition")  # when another job takes the record's place
Failures = dict[int, Document]
_RAW: CodecOptions[RawBSONDocument] = CODEC.with_options(document_class=RawBSONDocument)


@dataclass(frozen=True, slots=True)
class _Item:
    """A job on its way: its place in the bulk, its call, and its record in BSON."""

    place: int
    call: JobCall
    id: str
    record: RawBSONDocument


class Enqueuer:
    """Puts jobs into the queue."""

    def __init__(self, connection: Connection, partitions: int) -> None:
        self._connection = connection
        self._records = connection.records
        self._partitions = partitions

    async def schedule(self, calls: Sequence[JobCall]) -> list[Scheduled]:
        """Insert a record for each of ``calls`` in one go and return an outcome for each, in their order.

        Raises:
            pymongo.errors.PyMongoError: the server could not be asked; some of the jobs may have been accepted.
        """
        outcomes: dict[int, Scheduled] = {}
        if any(call.unique is not None for call in calls):
            await ensure_unique_identifiers(self._connection)
        now = self._connection.clock.now()
        storing: asyncio.Task[None] | None = None
        try:
            # One portion is encoded while the server stores the one before.
            for start in range(0, len(calls), _PORTION):
                items = await self._encode(range(start, min(start + _PORTION, len(calls))), calls, now, outcomes)
                if storing is not None:
                    await storing
                storing = asyncio.create_task(self._store(items, outcomes))
            if storing is not None:
                await storing
        finally:
            if storing is not None:
                storing.cancel()
        return [outcomes[place] for place in range(len(calls))]

    async def _encode(
        self, places: range, calls: Sequence[JobCall], now: datetime, outcomes: dict[int, Scheduled]
    ) -> list[_Item]:
        items = []
        for place in places:
            if place % _BREATH == _BREATH - 1:
                await asyncio.sleep(0)
            try:
                items.append(_encode(place, calls[place], self._partitions, now))
            except SchedulingError as error:
                outcomes[place] = _refused(error)
        return items

    async def _store(self, items: list[_Item], outcomes: dict[int, Scheduled]) -> None:
        for _ in range(_MAX_ROUNDS):
            if not items:
                return
            items = await self._insert(items, outcomes)
        for item in items:  # the holder of the identifier came and went each time
            outcomes[item.place] = _refused(SchedulingError(f"{item.call.unique!r} kept changing hands; try again"))

    async def _insert(self, items: list[_Item], outcomes: dict[int, Scheduled]) -> list[_Item]:
        """Insert ``items``; return those that should be tried again."""
        failed: Failures = {}
        try:
            await self._records.insert_many([item.record for item in items], ordered=False)
        except BulkWriteError as error:
            failed = _failures(error)
        taken = []
        for index, item in enumerate(items):
            if index not in failed or _is_own_repeat(failed[index]):
                outcomes[item.place] = Scheduled(id=item.id, status=ScheduleStatus.CREATED)
            elif _is_taken(failed[index]):
                taken.append(item)
            else:
                outcomes[item.place] = _refused(_refusal(item.call, failed[index]))
        return await self._resolve(taken, outcomes) if taken else []

    async def _resolve(self, items: list[_Item], outcomes: dict[int, Scheduled]) -> list[_Item]:
        """Settle what happens to jobs whose unique identifier is taken; return those whose holder is gone or dead."""
        await self._free_dead([item.call.unique for item in items])
        holders = await self._holders(items)
        held = [item for item in items if item.call.unique in holders]
        await self._replace([item for item in held if item.call.on_conflict == "replace"], holders, outcomes)
        for item in held:
            if item.place not in outcomes:
                outcomes[item.place] = _existing(item.call, holders[item.call.unique])
        return [item for item in items if item.call.unique not in holders]

    async def _free_dead(self, identifiers: Sequence[str | None]) -> None:
        # Gangline's own dead records gave theirs back when they died; the Node side's keep it.
        await self._records.update_many(
            {"uniqueIdentifier": {"$in": list(identifiers)}, "type": JobType.EVENT.value, "status": DEAD},
            [{"$set": {"freedUniqueIdentifier": "$uniqueIdentifier"}}, {"$unset": "uniqueIdentifier"}],
        )

    async def _holders(self, items: Sequence[_Item]) -> dict[str | None, str]:
        identifiers = {item.call.unique for item in items}
        found = self._records.find({"uniqueIdentifier": {"$in": list(identifiers)}}, {"uniqueIdentifier": 1})
        return {document["uniqueIdentifier"]: document["_id"] for document in await found.to_list()}

    async def _replace(
        self, items: Sequence[_Item], holders: Mapping[str | None, str], outcomes: dict[int, Scheduled]
    ) -> None:
        """Put ``items`` in the place of their holders and note the outcomes; a running holder is left without one.

        Each write is an upsert: it changes the holder while it waits, is inserted once the holder is gone, and meets
        the unique index while the holder runs. So each item has its verdict from its own write, and none is read from
        what others may have done to the record since.
        """
        if not items:
            return
        failed: Failures = {}
        try:
            done = (await self._records.bulk_write(list(map(_replacement, items)), ordered=False)).bulk_api_result
        except BulkWriteError as error:
            done, failed = dict(error.details or {}), _failures(error)
        inserted = {upserted["index"] for upserted in done["upserted"]}
        for index, item in enumerate(items):
            if index in inserted:
                outcomes[item.place] = Scheduled(id=item.id, status=ScheduleStatus.CREATED)
            elif index not in failed:
                outcomes[item.place] = Scheduled(id=holders[item.call.unique], status=ScheduleStatus.REPLACED)
            elif not _is_taken(failed[index]):
                outcomes[item.place] = _refused(_refusal(item.call, failed[index]))


def _encode(place: int, call: JobCall, partitions: int, now: datetime) -> _Item:
    job_id = str(uuid_utils.uuid7())
    document = {
        "_id": job_id,
        "jobName": call.name,
        "type": JobType.EVENT.value,
        "priority": call.priority,
        "nextRunAt": _due(call, now),
        "partition": random.randrange(partitions),
        "params": call.params(),
        "tries": 0,
        "createdAt": now,
    }
    if call.unique is not None:
        document["uniqueIdentifier"] = call.unique
    return _Item(place, call, job_id, RawBSONDocument(_bson(document, call.name), _RAW))


def _bson(document: Document, name: str) -> bytes:
    try:
        encoded = bson.encode(document, codec_options=CODEC)
    except (InvalidDocument, OverflowError, UnicodeEncodeError) as error:
        # Without the driver's text: it may show the params.
        raise InvalidParams(f"job {name!r}: the record cannot be stored ({type(error).__name__})") from error
    if len(encoded) > _MAX_RECORD_BYTES:
        raise RecordTooLarge(
            f"job {name!r}: the record has {len(encoded):,} bytes, {_MAX_RECORD_BYTES:,} can be stored; "
            "store the payload elsewhere and pass a reference"
        )
    return encoded


def _due(call: JobCall, now: datetime) -> datetime:
    if call.run_at is not None:
        return call.run_at
    try:
        return now if call.run_in is None else now + call.run_in
    except OverflowError:
        return END_OF_TIME


def _replacement(item: _Item) -> UpdateOne:
    """The write that puts ``item`` in the place of a waiting record, or in no one's place."""
    # Still in BSON, so that params are stored as they were encoded.
    fields = {name: value for name, value in item.record.items() if name not in _KEPT}
    # By exclusion: an upsert would write what is asked for as equal to null.
    engaged = [{"lockedUntil": {"$ne": None}}, {"type": {"$ne": JobType.EVENT.value}}, {"status": DEAD}]
    return UpdateOne(
        {"uniqueIdentifier": item.call.unique, "$nor": engaged},
        {
            "$set": fields,
            "$setOnInsert": {"_id": item.id, "partition": item.record["partition"]},
            "$unset": {"lastError": ""},
        },
        upsert=True,
    )


def _existing(call: JobCall, holder: str) -> Scheduled:
    if call.on_conflict == "raise":
        return _refused(AlreadyScheduled(call.unique or "", holder))
    return Scheduled(id=holder, status=ScheduleStatus.EXISTING)


def _refused(error: SchedulingError) -> Scheduled:
    return Scheduled(id=None, status=ScheduleStatus.REFUSED, error=error)


def _failures(error: BulkWriteError) -> Failures:
    """What went wrong, by the place of the write; without the write concern nothing is known to be accepted."""
    details = error.details or {}
    if details.get("writeConcernErrors"):
        raise error
    return {failure["index"]: failure for failure in details.get("writeErrors", [])}


def _is_own_repeat(failure: Document) -> bool:
    # The id is new: only the driver's own repetition of this very insert can have stored it.
    return failure["code"] == DUPLICATE_KEY and "_id" in failure.get("keyPattern", {})


def _is_taken(failure: Document) -> bool:
    return failure["code"] == DUPLICATE_KEY and "uniqueIdentifier" in failure.get("keyPattern", {})


def _refusal(call: JobCall, failure: Document) -> SchedulingError:
    if failure["code"] == DUPLICATE_KEY:
        # The server's text holds the values, and params may hold secrets.
        reason = f"a unique index on {', '.join(failure.get('keyPattern', {}))} has such a record already"
    else:
        reason = failure.get("errmsg", f"error {failure['code']}")
    return SchedulingError(f"job {call.name!r}: the server refused the record: {reason}")
