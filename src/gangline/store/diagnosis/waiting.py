"""The job names that wait in a queue, each with its record that is due first, without reading the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gangline.store.claims.protocol import Records
from gangline.store.codec import BEGIN_OF_TIME, instant
from gangline.store.eligibility import alive
from gangline.store.schema import DUE, FREE

MAX_NAMES = 1_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """The record of a job name that is due first."""

    name: str
    since: datetime
    partition: Any


class WaitingNames:
    """One record for each of the first 1,000 job names, read once: several checks ask for them."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._found: Sequence[Waiting] | None = None

    async def read(self) -> Sequence[Waiting]:
        """Return them, by name.

        Raises:
            pymongo.errors.PyMongoError: the server could not be asked, or the index for it is missing.
        """
        if self._found is None:
            self._found = await _read(self._records)
        return self._found


async def _read(records: Records) -> list[Waiting]:
    # A seek for each name, however many records it has. A `distinct` would read every record, since the partial
    # filter's nulls cannot be told from an index.
    found: list[Waiting] = []
    while len(found) < MAX_NAMES:
        following = await _first_after(records, found[-1].name if found else "")
        if following is None:
            break
        found.append(following)
    return found


async def _first_after(records: Records, name: str) -> Waiting | None:
    document = await records.find_one(
        {"jobName": {"$gt": name}, **FREE, "nextRunAt": {"$gte": BEGIN_OF_TIME}, **alive()},
        {"jobName": 1, "nextRunAt": 1, "partition": 1},
        sort=[("jobName", 1), ("nextRunAt", 1)],
        hint=DUE.name,
    )
    if document is None:
        return None
    return Waiting(document["jobName"], instant(document["nextRunAt"]), document.get("partition"))
