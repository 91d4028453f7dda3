"""The other side of a shared queue: what `@orion-js/dogs` 4.6 sends to the server, command by command.

Written from the record format and from what the published package does; none of its code is here. Its clock is the
client's, its lock ids are 17 letters and digits, and it never looks at the fields that are Gangline's own.
"""

import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

import uuid_utils
from pymongo import InsertOne, MongoClient, ReturnDocument, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from support.queues import DEAD, NODE_PREFIX, Document

Keys = dict[str, int]

BY_JOB_NAME: Keys = {"partition": 1, "jobName": 1, "priority": -1, "nextRunAt": 1}
BY_PRIORITY: Keys = {"partition": 1, "priority": -1, "nextRunAt": 1}
OLD_BY_JOB_NAME: Keys = {"jobName": 1, "priority": -1, "nextRunAt": 1}
OLD_BY_PRIORITY: Keys = {"priority": -1, "nextRunAt": 1}
"""The hints of versions before 4.6.5, which know no partitions."""

LOCK = timedelta(seconds=30)
WEEK = timedelta(weeks=1)
_SORT: Keys = {"priority": -1, "nextRunAt": 1}
_UNLOCK = {"lockId": "", "lockedUntil": "", "claimWasStale": ""}
_CONFLICTS = (85, 86)  # an index with the same keys or the same name, and other options
_DUPLICATE_KEY = 11000

RECORD_INDEXES: list[tuple[Keys, dict[str, Any]]] = [
    (BY_JOB_NAME, {"name": "jobs_dogs_records_partition_job_name_priority_next_run"}),
    (BY_PRIORITY, {"name": "jobs_dogs_records_partition_priority_next_run"}),
    ({"jobName": 1}, {"unique": True, "partialFilterExpression": {"type": "recurrent"}}),
    ({"uniqueIdentifier": 1}, {"unique": True, "sparse": True}),
    ({"lockId": 1}, {"name": "jobs_dogs_records_lock_id", "sparse": True}),
    ({"expiresAt": 1}, {"name": "jobs_dogs_records_expires_at_ttl", "expireAfterSeconds": 0}),
]
OLD_RECORD_INDEXES: list[tuple[Keys, dict[str, Any]]] = [(OLD_BY_JOB_NAME, {}), (OLD_BY_PRIORITY, {})]
HISTORY_INDEXES: list[tuple[Keys, dict[str, Any]]] = [
    ({"jobName": 1, "startedAt": 1}, {}),
    ({"executionId": 1}, {}),
    ({"expiresAt": 1}, {"expireAfterSeconds": 0}),
]


@dataclass(frozen=True, kw_only=True)
class JobToRun:
    """What a Node worker knows of the execution that it starts."""

    id: str
    lock_id: str
    name: str
    type: str
    params: Any
    tries: int
    priority: float
    unique: str | None
    was_stale: bool
    started_at: datetime


class NodeSide:
    """A Node program with `partitions`; with `None` one of a version before 4.6.5."""

    def __init__(self, uri: str, partitions: int | None = 4) -> None:
        self.client: MongoClient[Document] = MongoClient(uri, tz_aware=True)
        database = self.client.get_default_database()
        self.records: Collection[Document] = database[f"{NODE_PREFIX}records"]
        self.history: Collection[Document] = database[f"{NODE_PREFIX}history"]
        self.partitions = partitions
        self.replaced: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.client.close()

    @property
    def hints(self) -> tuple[Keys, Keys]:
        """Its two acquisition hints."""
        return (OLD_BY_JOB_NAME, OLD_BY_PRIORITY) if self.partitions is None else (BY_JOB_NAME, BY_PRIORITY)

    @property
    def record(self) -> Document:
        """The one record of the queue."""
        [record] = self.records.find()
        return record

    # Starting

    def start(self, recurrent: Sequence[str] = (), *, keep_dead: timedelta | None = WEEK) -> None:
        """What a Node worker does when it starts: indexes, dead records, recurrent records, one repair."""
        self.make_indexes()
        self.apply_retention(keep_dead)
        for name in recurrent:
            self.ensure_recurrent(name)
        if self.partitions is not None:
            self.reconcile()

    def make_indexes(self) -> None:
        """Make its indexes; what is in conflict with one of them it drops and makes anew, see `replaced`."""
        own = OLD_RECORD_INDEXES + RECORD_INDEXES[2:] if self.partitions is None else RECORD_INDEXES
        for keys, options in own:
            self._make_index(self.records, keys, options)
        for keys, options in HISTORY_INDEXES:
            self._make_index(self.history, keys, options)

    def _make_index(self, collection: Collection[Document], keys: Keys, options: dict[str, Any]) -> None:
        try:
            collection.create_index(list(keys.items()), **options)
        except OperationFailure as error:
            if error.code not in _CONFLICTS:
                raise
            name = str((error.details or {})["errmsg"]).split('name: "')[1].split('"')[0]
            self.replaced.append(name)
            collection.drop_index(name)
            collection.create_index(list(keys.items()), **options)

    def delete_unused_indexes(self) -> list[str]:
        """What its framework offers for tidying up: drop every index that the program does not define."""
        names = {options["name"] for _, options in RECORD_INDEXES if "name" in options}
        patterns = [tuple(keys.items()) for keys, _ in RECORD_INDEXES]
        unused = [
            name
            for name, index in self.records.index_information().items()
            if name not in names | {"_id_"} and tuple(index["key"]) not in patterns
        ]
        for name in unused:
            self.records.drop_index(name)
        return unused

    def apply_retention(self, keep: timedelta | None) -> None:
        """Let all dead records expire `keep` after they died."""
        dead = {"type": "event", "status": DEAD}
        if keep is None:
            self.records.update_many(dead, {"$unset": {"expiresAt": ""}})
            return
        died = {"$ifNull": ["$maxTriesReachedAt", {"$ifNull": ["$lastRunAt", _now()]}]}
        expires = {"$add": [died, keep // timedelta(milliseconds=1)]}
        self.records.update_many(dead, [{"$set": {"maxTriesReachedAt": died, "expiresAt": expires}}])

    def ensure_recurrent(self, name: str, priority: float = 100) -> None:
        """Make the record of a recurrent job, due at once, or take the one that is there."""
        on_insert = {"_id": _new_id(), "nextRunAt": _now(), "partition": self._partition()}
        self.records.update_one(
            {"jobName": name},
            {
                "$set": {"type": "recurrent", "priority": priority},
                "$unset": {"status": ""},
                "$setOnInsert": {key: value for key, value in on_insert.items() if value is not None},
            },
            upsert=True,
        )

    # Scheduling

    def schedule(self, name: str, params: Any = None, **fields: Any) -> str:
        """Schedule one event job and return its id; `fields` replace those of the record, `None` leaves one out."""
        record = self._new_record(name, params, fields)
        self.records.insert_one(record)
        return str(record["_id"])

    def schedule_many(self, jobs: Sequence[tuple[str, Any, Mapping[str, Any]]]) -> int:
        """Schedule jobs of `(name, params, fields)` in one go and return how many are new."""
        records = [self._new_record(name, params, fields) for name, params, fields in jobs]
        result = self.records.bulk_write([_insertion(record) for record in records], ordered=False)
        return result.inserted_count + result.upserted_count

    def _new_record(self, name: str, params: Any, fields: Mapping[str, Any]) -> Document:
        record = {
            "_id": _new_id(),
            "jobName": name,
            "nextRunAt": _now(),
            "priority": 100,
            "type": "event",
            "partition": self._partition(),
            **fields,
        }
        return {**{key: value for key, value in record.items() if value is not None}, "params": params or None}

    def _partition(self) -> int | None:
        return None if self.partitions is None else random.randrange(self.partitions)

    # Claiming

    def claim(self, *names: str, hint: Keys | None = None, lock: timedelta = LOCK) -> JobToRun | None:
        """Claim the best record of the first partition that has one, asking each in random order."""
        hint = hint or self.hints[0]
        count = self.partitions
        for partition in random.sample(range(count), count) if count is not None else [None]:
            if job := self.claim_in(partition, names, hint, lock):
                return job
        return None

    def claim_in(
        self, partition: int | None, names: Sequence[str], hint: Keys, lock: timedelta = LOCK
    ) -> JobToRun | None:
        """Claim by `findOneAndUpdate`, with the hint as a key pattern."""
        lock_id, now = _new_lock_id(), _now()
        before: Document | None = self.records.find_one_and_update(
            _selector(partition, names, now),
            {"$set": {"lockId": lock_id, "lockedUntil": now + lock, "lastRunAt": now}, "$inc": {"tries": 1}},
            sort=list(_SORT.items()),
            hint=list(hint.items()),
            return_document=ReturnDocument.BEFORE,
        )
        if before is None:
            return None
        tries = before.get("tries") or 0
        return _to_run(before, lock_id, now, tries=tries + 1, was_stale=bool(before.get("lockedUntil")))

    def claim_sorted(self, partition: int, names: Sequence[str], hint: Keys, lock: timedelta = LOCK) -> JobToRun | None:
        """Claim by a sorted `updateOne`, as it does on MongoDB 8, and read the record back by its lock id."""
        lock_id, now = _new_lock_id(), _now()
        fields = {
            "lockId": {"$literal": lock_id},
            "lockedUntil": {"$literal": now + lock},
            "lastRunAt": {"$literal": now},
            "tries": {"$add": [{"$ifNull": ["$tries", 0]}, 1]},
            "claimWasStale": {"$eq": [{"$type": "$lockedUntil"}, "date"]},
        }
        selector = _selector(partition, names, now)
        result = self.records.update_one(selector, [{"$set": fields}], sort=_SORT, hint=list(hint.items()))
        claimed = self.records.find_one({"lockId": lock_id}) if result.matched_count else None
        if claimed is None:
            return None
        return _to_run(claimed, lock_id, now, tries=claimed["tries"], was_stale=claimed["claimWasStale"])

    # Settling. Each returns whether the lock was still held.

    def succeed(self, job: JobToRun, result: Any = None) -> bool:
        """End an event job well."""
        held = bool(self.records.delete_one({"_id": job.id, "type": "event", "lockId": job.lock_id}).deleted_count)
        self._tell(job, held, "success", result=result)
        return held

    def run_again(self, job: JobToRun, at: datetime, *, fresh: bool, error: str | None = None) -> bool:
        """Retry an event job, or give a recurrent one its next instant."""
        fields = {"nextRunAt": at, "priority": job.priority, **({"tries": 0} if fresh else {})}
        held = self._update(job, {"$set": fields, "$unset": _UNLOCK})
        self._tell(job, held, "success" if error is None else "error", error=error)
        return held

    def bury(self, job: JobToRun, keep: timedelta | None = WEEK) -> bool:
        """Mark an event job as out of tries; this it does before a run, so there is no history of it."""
        now = _now()
        expires = {} if keep is None else {"expiresAt": now + keep}
        forget = {"expiresAt": ""} if keep is None else {}
        change = {
            "$set": {"status": DEAD, "maxTriesReachedAt": now, **expires},
            "$unset": {**_UNLOCK, **forget},
        }
        filter_ = {"_id": job.id, "type": "event", "lockId": job.lock_id}
        return bool(self.records.update_one(filter_, change).matched_count)

    def go_stale(self, job: JobToRun) -> bool:
        """Notice that the lock ended: lower the priority if the lock is still ours, and write the history."""
        held = self._update(job, {"$set": {"priority": 0}})
        self.write_history(job, "stale")
        return held

    def extend(self, job: JobToRun, lock: timedelta) -> bool:
        """Extend the lock, or shorten it."""
        return self._update(job, {"$set": {"lockedUntil": _now() + lock}})

    def let_expire(self, job: JobToRun) -> None:
        """Let the lock have ended a second ago, as if its worker had died."""
        assert self.extend(job, -timedelta(seconds=1))

    def _update(self, job: JobToRun, change: dict[str, Any]) -> bool:
        return bool(self.records.update_one({"_id": job.id, "lockId": job.lock_id}, change).matched_count)

    def _tell(self, job: JobToRun, held: bool, status: str, **told: Any) -> None:
        if held:
            self.write_history(job, status, **told)
        else:
            self.go_stale(job)

    def write_history(self, job: JobToRun, status: str, *, result: Any = None, error: str | None = None) -> None:
        """Write the history of an execution; the first status stays."""
        ended = _now()
        entry = {
            "jobId": job.id,
            "executionId": job.lock_id,
            "jobName": job.name,
            "type": job.type,
            "priority": job.priority,
            "tries": job.tries,
            "startedAt": job.started_at,
            "endedAt": ended,
            "duration": (ended - job.started_at) // timedelta(milliseconds=1),
            "expiresAt": ended + WEEK,
            "errorMessage": error,
            "params": job.params,
            "result": result or None,
        }
        if job.unique is not None:
            entry["uniqueIdentifier"] = job.unique
        change = {"$setOnInsert": {"_id": _new_id(), "status": status}, "$set": entry}
        self.history.update_one({"executionId": job.lock_id}, change, upsert=True)

    # Repairing

    def reconcile(self, names: Sequence[str] | None = None) -> int:
        """Give up to 500 records outside the range a partition, and return how many."""
        assert self.partitions is not None
        now = _now()
        outside = [
            {"partition": {"$exists": False}},
            {"partition": {"$lt": 0}},
            {"partition": {"$gte": self.partitions}},
        ]
        condition = [{"$or": outside}, _unlocked(now), _runnable()]
        wanted = {"jobName": {"$in": list(names)}} if names is not None else {}
        found = list(self.records.find({**wanted, "$and": condition}, {"_id": 1}).limit(500))
        writes = [
            UpdateOne({"_id": record["_id"], "$and": condition}, {"$set": {"partition": self._partition()}})
            for record in found
        ]
        return self.records.bulk_write(writes, ordered=False).modified_count if writes else 0

    # Working

    def work_once(self, names: Sequence[str], run: Callable[[JobToRun], None]) -> bool:
        """Claim one record by one of the two hints, run it and settle it; an error means a retry at once."""
        job = self.claim(*names, hint=random.choice(self.hints))
        if job is None:
            return False
        try:
            run(job)
        except RuntimeError as error:
            self.run_again(job, _now(), fresh=False, error=str(error))
        else:
            self.succeed(job)
        return True


def _selector(partition: int | None, names: Sequence[str], now: datetime) -> Document:
    where = {} if partition is None else {"partition": partition}
    return {
        **where,
        "jobName": {"$in": list(names)},
        "nextRunAt": {"$lte": now},
        "$and": [_unlocked(now), _runnable()],
    }


def _unlocked(now: datetime) -> Document:
    return {"$or": [{"lockedUntil": {"$exists": False}}, {"lockedUntil": {"$lte": now}}]}


def _runnable() -> Document:
    return {"$or": [{"type": {"$ne": "event"}}, {"status": {"$ne": DEAD}}]}


def _to_run(record: Document, lock_id: str, now: datetime, *, tries: int, was_stale: bool) -> JobToRun:
    return JobToRun(
        id=record["_id"],
        lock_id=lock_id,
        name=record["jobName"],
        type=record["type"],
        params=record.get("params"),
        tries=tries,
        priority=record["priority"],
        unique=record.get("uniqueIdentifier"),
        was_stale=was_stale,
        started_at=now,
    )


def _insertion(record: Document) -> InsertOne[Document] | UpdateOne:
    if "uniqueIdentifier" not in record:
        return InsertOne(record)
    return UpdateOne({"uniqueIdentifier": record["uniqueIdentifier"]}, {"$setOnInsert": record}, upsert=True)


def _new_id() -> str:
    return str(uuid_utils.uuid7())


def _new_lock_id() -> str:
    return "".join(random.choices(string.ascii_letters + string.digits, k=17))


def _now() -> datetime:
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)
