"""What another program does with the same queue: records as `@orion-js/dogs` writes them, and its claim."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import ReturnDocument
from pymongo.collection import Collection

Document = dict[str, Any]

NODE_PREFIX = "orionjs.jobs_dogs_"
DEAD = "maxTriesReached"

_NODE_INDEX = [("partition", 1), ("jobName", 1), ("priority", -1), ("nextRunAt", 1)]


def node_record(name: str, params: Mapping[str, Any] | None = None, **fields: Any) -> Document:
    """An event record as a Node program schedules it, due for a minute."""
    return {
        "_id": str(uuid.uuid4()),
        "jobName": name,
        "type": "event",
        "priority": 100,
        "nextRunAt": datetime.now(UTC) - timedelta(minutes=1),
        "partition": 0,
        "params": params,
        **fields,
    }


def dead_node_record(name: str, **fields: Any) -> Document:
    """A dead event record as a Node worker leaves it: it keeps its unique identifier."""
    now = datetime.now(UTC)
    week = timedelta(weeks=1)
    return node_record(
        name, tries=10, status=DEAD, maxTriesReachedAt=now, expiresAt=now + week, lastRunAt=now, **fields
    )


def make_node_indexes(records: Collection[Document]) -> None:
    """Make the index that a Node worker hints to, as it does when it starts."""
    records.create_index(_NODE_INDEX, name="jobs_dogs_records_partition_job_name_priority_next_run")


def node_claim(records: Collection[Document], names: list[str], partitions: int) -> Document | None:
    """Claim as a Node worker does, by an exact partition and a hint that is a key pattern."""
    now = datetime.now(UTC)
    for partition in range(partitions):
        claimed: Document | None = records.find_one_and_update(
            {
                "partition": partition,
                "jobName": {"$in": names},
                "nextRunAt": {"$lte": now},
                "$or": [{"lockedUntil": {"$exists": False}}, {"lockedUntil": None}, {"lockedUntil": {"$lte": now}}],
                "$nor": [{"type": "event", "status": DEAD}],
            },
            {
                "$set": {"lockedUntil": now + timedelta(seconds=30), "lockId": str(uuid.uuid4()), "lastRunAt": now},
                "$inc": {"tries": 1},
            },
            sort=[("priority", -1), ("nextRunAt", 1)],
            hint=_NODE_INDEX,
            return_document=ReturnDocument.AFTER,
        )
        if claimed is not None:
            return claimed
    return None
