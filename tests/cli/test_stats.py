"""`gangline stats`: the workers with what they chose, and the records that no claim asks for."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline import Gangline
from support.apps import Raw, eventually, running
from support.cli import in_process
from support.examined import WORKER, set_up
from support.queues import node_record


@pytest.fixture
def raw(uri: str) -> Iterator[Raw]:
    with Raw(uri) as found:
        yield found


def stats(uri: str) -> dict[str, Any]:
    result = in_process("stats", "--uri", uri, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_workers_are_told_with_their_claims_and_their_shape(uri: str) -> None:
    set_up(uri, WORKER, replace(WORKER, name="host:2:two", claim_protocol="sorted-update", shape="by-priority"))
    found = stats(uri)
    assert [(worker["name"], worker["claim_protocol"], worker["shape"]) for worker in found["workers"]] == [
        ("host:1:one", "batch", "by-name"),
        ("host:2:two", "sorted-update", "by-priority"),
    ]
    assert found["workers"][0]["jobs"] == WORKER.jobs
    shown = " ".join(in_process("stats", "--uri", uri).stdout.split())
    assert "host:1:one 2 8 4 batch by-name" in shown
    assert "host:2:two 2 8 4 sorted-update by-priority" in shown
    assert shown.endswith("records outside the 4 partitions: 0")


def test_a_worker_that_was_killed_is_not_told_for_long(uri: str, raw: Raw) -> None:
    set_up(uri, WORKER)
    workers = raw.client.get_default_database()["gangline.workers"]
    workers.update_one({}, {"$set": {"seenAt": datetime.now(UTC) - timedelta(minutes=4)}})
    assert stats(uri)["workers"] == []


def test_beyond_the_largest_number_of_partitions_nobody_asks(uri: str, raw: Raw) -> None:
    set_up(uri, WORKER, replace(WORKER, name="host:2:two", partitions=16))
    raw.records.insert_many([node_record("a", partition=partition) for partition in (3, 15, 16)])
    assert stats(uri)["misplaced"] == {"partitions": 16, "records": 1}


def test_without_a_worker_only_records_without_a_partition_are_known_to_be_misplaced(uri: str, raw: Raw) -> None:
    raw.records.insert_many([node_record("a", partition=99), node_record("a", partition=None)])
    assert stats(uri)["misplaced"] is None, "the index for it is missing"
    set_up(uri)
    assert stats(uri)["misplaced"] == {"partitions": None, "records": 1}
    assert "records without a partition: 1" in in_process("stats", "--uri", uri).stdout


async def test_a_repair_is_seen_ending(uri: str, raw: Raw) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    set_aside = [node_record("later", partition=number, nextRunAt=tomorrow) for number in range(4, 704)]
    raw.records.insert_many(set_aside)
    await asyncio.to_thread(set_up, uri, WORKER)
    assert (await asyncio.to_thread(stats, uri))["misplaced"] == {"partitions": 4, "records": 700}
    async with Gangline(uri, partitions=4) as app:

        @app.event()
        async def other() -> None: ...

        async with running(app):
            await eventually(lambda: raw.records.count_documents({"partition": {"$gte": 4}}) == 0)
            found = await asyncio.to_thread(stats, uri)
    assert found["misplaced"] == {"partitions": 4, "records": 0}
    [own] = [worker for worker in found["workers"] if worker["name"] != WORKER.name]
    assert (own["jobs"], own["shape"] in ("by-name", "by-priority")) == ({"other": "event"}, True)
    assert own["claim_protocol"] in ("batch", "sorted-update")
