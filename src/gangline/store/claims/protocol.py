"""The claim interface, and what all protocols share: the stamp of a claim and the read-back of its tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

import uuid_utils
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import PyMongoError

from gangline.jobs.hint import Shape
from gangline.jobs.record import ClaimedRecord
from gangline.store.codec import claimed_record
from gangline.store.connection import Document

Records = AsyncCollection[Document]

_TOKEN = re.compile(r"[0-9a-f]{32}(-\d+)?")


@dataclass(frozen=True, kw_only=True)
class LeaseLengths:
    """How long a claim lasts: the worker's length, and those of jobs that have their own."""

    default: timedelta
    by_name: Mapping[str, timedelta] = field(default_factory=dict)

    def of(self, name: str) -> timedelta:
        """Return the length for a job name."""
        return self.by_name.get(name, self.default)


@dataclass(frozen=True, kw_only=True)
class ClaimRequest:
    """What a scheduler wants from one partition.

    Attributes:
        partition: the one partition that is asked.
        names: the job names that may be taken, at least one.
        limit: the most records to take, at least 1.
        caps: for some of ``names`` how many of them may be taken, at least 1 each.
        shape: over which index.
        now: the server's time.
        leases: how long the claims last.
        worker: who claims, for people.
    """

    partition: int
    names: Sequence[str]
    limit: int
    caps: Mapping[str, int] = field(default_factory=dict)
    shape: Shape
    now: datetime
    leases: LeaseLengths
    worker: str


@dataclass(frozen=True)
class Claims:
    """What a claim won, best first.

    ``contended`` says that there were due records which a rival took first: winning nothing then does not mean that
    the partition is empty.
    """

    records: tuple[ClaimedRecord, ...] = ()
    contended: bool = False


class ClaimProtocol(Protocol):
    """Gives due records to executions, each to one."""

    @property
    def name(self) -> str:
        """The protocol's name in settings and logs."""

    async def claim(self, request: ClaimRequest) -> Claims:
        """Claim up to ``request.limit`` records of one partition.

        Raises:
            pymongo.errors.PyMongoError: the server could not be asked, and a read-back found nothing won. What the
                claim may have won all the same comes back when its lease ends.
        """


def new_token() -> str:
    """Return a new unique token; a lock id is one, or one with a suffix."""
    return uuid_utils.uuid7().hex


def is_token(lock_id: Any) -> bool:
    """Whether ``lock_id`` is Gangline's. ``lockedBy`` does not tell: a Node worker that claims leaves it as it was."""
    return isinstance(lock_id, str) and _TOKEN.fullmatch(lock_id) is not None


def stamp(lock_id: Any, leases: LeaseLengths, worker: str, *, was_stale: bool) -> list[dict[str, Any]]:
    """Return the update pipeline of a claim. ``lock_id`` is the token, or an expression that gives it.

    The lease ends by the server's own clock, and ``tries`` counts on from whatever stood there before: what is no
    whole number of claims, such as a text or NaN, was none.
    """
    number = {"$cond": [{"$isNumber": "$tries"}, "$tries", 0]}
    tries = {"$convert": {"input": number, "to": "int", "onError": 0}}
    fields = {
        "lockId": lock_id,
        "lockedUntil": {"$add": ["$$NOW", _lease_milliseconds(leases)]},
        "lockedBy": {"$literal": worker},
        "claimWasStale": was_stale,
        "lastRunAt": "$$NOW",
        "tries": {"$add": [tries, 1]},
    }
    return [{"$set": fields}]


def _lease_milliseconds(leases: LeaseLengths) -> Any:
    default = _milliseconds(leases.default)
    branches = [
        {"case": {"$eq": ["$jobName", {"$literal": name}]}, "then": _milliseconds(length)}
        for name, length in leases.by_name.items()
    ]
    return {"$switch": {"branches": branches, "default": default}} if branches else default


def _milliseconds(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)


async def read_back(records: Records, tokens: Sequence[str], *, was_stale: bool = False) -> tuple[ClaimedRecord, ...]:
    """Return the records that were won under ``tokens``, in the order of the tokens."""
    # Not in a single answer, which holds 101 documents unless told otherwise, and never more than 16 MiB of them.
    cursor = records.find({"lockId": {"$in": list(tokens)}}).limit(len(tokens)).batch_size(len(tokens))
    won = {document["lockId"]: document for document in await cursor.to_list()}
    return tuple(claimed_record(won[token], was_stale=was_stale) for token in tokens if token in won)


async def read_back_after(
    error: PyMongoError, records: Records, tokens: Sequence[str], *, was_stale: bool = False
) -> tuple[ClaimedRecord, ...]:
    """Return what was won although the answer to the claim was lost; if that is nothing, raise ``error``.

    Never guess: a claim whose answer was lost may have taken effect.
    """
    try:
        won = await read_back(records, tokens, was_stale=was_stale)
    except PyMongoError:
        raise error from None
    if not won:
        raise error
    return won
