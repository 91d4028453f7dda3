"""`gangline indexes`: how they stand, making them, and dropping what only Node workers need."""

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import Result

from gangline.store.indexes import LEGACY, IndexState, compare, ensure_indexes, make_indexes
from gangline.store.legacy_indexes import LegacyWatch
from gangline.store.schema import DEAD_TTL, LOCK_ID, RECORD_INDEXES, UNIQUE_IDENTIFIER, Index
from support.apps import Raw, failing, named
from support.cli import in_process
from support.examined import set_up
from support.queues import make_node_indexes, node_claim, node_record
from support.records import due_record, locked_until, open_connection

Document = dict[str, Any]

NODE_BY_NAME = "jobs_dogs_records_partition_job_name_priority_next_run"
OLD_BY_PRIORITY = "priority_-1_nextRunAt_1"


@pytest.fixture
def raw(uri: str) -> Iterator[Raw]:
    with Raw(uri) as found:
        yield found


@pytest.fixture
def node(uri: str, raw: Raw) -> Raw:
    """A queue with all indexes, on which Node workers of both ages have been."""
    set_up(uri)
    make_node_indexes(raw.records)
    raw.records.create_index([("priority", -1), ("nextRunAt", 1)], name=OLD_BY_PRIORITY)
    return raw


def indexes(command: str, uri: str, *arguments: str) -> Result:
    result = in_process("indexes", command, "--uri", uri, *arguments)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


def drop_legacy(uri: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    result = indexes("drop-legacy", uri, "--observe", "20ms", "--json", *arguments)
    return result.exit_code, json.loads(result.stdout)


def states(uri: str) -> dict[str, Document]:
    result = indexes("status", uri, "--json")
    assert result.exit_code == 0, result.output
    return {index["name"]: index for index in json.loads(result.stdout)["indexes"]}


def names(raw: Raw) -> set[str]:
    return set(raw.records.index_information())


# How they stand


def test_each_index_is_told_with_its_state(node: Raw, uri: str) -> None:
    node.records.drop_index("gangline_due")
    node.records.drop_index("uniqueIdentifier_1")
    node.records.create_index("uniqueIdentifier", name="uniqueIdentifier_1")
    node.records.create_index("mine")
    found = states(uri)
    assert {name: index["state"] for name, index in found.items()} == {
        **{index.name: "present" for index in RECORD_INDEXES},
        **dict.fromkeys(["jobName_1_startedAt_1", "executionId_1", "expiresAt_1", "seenAt_1"], "present"),
        "gangline_due": "missing",
        "uniqueIdentifier_1": "differing",
        NODE_BY_NAME: "legacy",
        OLD_BY_PRIORITY: "legacy",
        "mine_1": "foreign",
    }
    assert found["uniqueIdentifier_1"]["note"] == "not as needed: unique, sparse"
    assert found["gangline_due"]["remedy"] == "Run `gangline indexes ensure`"
    assert found[NODE_BY_NAME]["note"] == "for Node 4.6.5 and later"
    assert found[OLD_BY_PRIORITY]["note"] == "for Node before 4.6.5"
    assert found[NODE_BY_NAME]["keys"] == {"partition": 1, "jobName": 1, "priority": -1, "nextRunAt": 1}
    assert found["seenAt_1"]["collection"] == "gangline.workers"


def test_an_index_is_told_with_its_size_and_its_use(node: Raw, uri: str) -> None:
    for _ in range(3):
        node.records.find_one({"priority": 1}, hint=OLD_BY_PRIORITY)
    index = states(uri)[OLD_BY_PRIORITY]
    assert index["size"] >= 4096
    assert index["use"]["ops"] == 3
    assert datetime.fromisoformat(index["use"]["since"]) <= datetime.now(UTC)
    shown = " ".join(indexes("status", uri).stdout.split())
    assert f"{OLD_BY_PRIORITY} priority -1, nextRunAt legacy 4 KiB 3" in shown


def test_without_a_queue_everything_is_missing(uri: str, raw: Raw) -> None:
    assert {index["state"] for index in states(uri).values()} == {"missing"}
    assert raw.client.get_default_database().list_collection_names() == [], "looking makes nothing"


def test_a_server_that_keeps_no_statistics_is_no_error(sorted_uri: str) -> None:
    set_up(sorted_uri)
    found = states(sorted_uri)
    assert {index["state"] for index in found.values()} == {"present"}
    assert found["gangline_due"]["use"] is None


def described(index: Index, **changes: Any) -> Document:
    """`index` as the server describes it."""
    found = {"v": 2, "key": {name: float(direction) for name, direction in index.keys}, **index.options, **changes}
    return {name: value for name, value in found.items() if value is not ...}


@pytest.mark.parametrize(
    ("index", "changes", "different"),
    [
        (LOCK_ID, {}, None),
        (LOCK_ID, {"unique": False, "hidden": False}, None),
        (LOCK_ID, {"sparse": ...}, "sparse"),
        (LOCK_ID, {"hidden": True}, "hidden"),
        (LOCK_ID, {"key": {"lockId": -1}}, "key"),
        (LOCK_ID, {"collation": {"locale": "de"}}, "collation"),
        (UNIQUE_IDENTIFIER, {"unique": ...}, "unique"),
        (DEAD_TTL, {"expireAfterSeconds": 0.0}, None),
        (DEAD_TTL, {"expireAfterSeconds": ...}, "expireAfterSeconds"),
        (DEAD_TTL, {"expireAfterSeconds": 60}, "expireAfterSeconds"),
        (RECORD_INDEXES[4], {"partialFilterExpression": {"lockedUntil": None}}, "partialFilterExpression"),
    ],
)
def test_every_option_counts(index: Index, changes: Document, different: str | None) -> None:
    [status] = compare([index], [described(index, **changes)])
    assert status.state is (IndexState.DIFFERING if different else IndexState.PRESENT)
    assert status.note == (f"not as needed: {different}" if different else "")


def test_the_order_of_the_keys_counts() -> None:
    index = RECORD_INDEXES[4]
    [status] = compare([index], [described(index, key=dict(reversed(index.keys)))])
    assert status.note == "not as needed: key"


def test_a_legacy_index_is_plain() -> None:
    keys = dict(next(iter(LEGACY)))
    found = [
        {"name": "plain", "key": keys},
        {"name": "partial", "key": keys, "partialFilterExpression": {"a": 1}},
    ]
    assert [(status.name, status.state) for status in compare([], found)] == [
        ("plain", IndexState.LEGACY),
        ("partial", IndexState.FOREIGN),
    ]


# Making them


def test_what_is_missing_is_made(uri: str, raw: Raw) -> None:
    raw.records.insert_one(node_record("old"))
    result = indexes("ensure", uri)
    assert result.exit_code == 0
    assert result.stdout.startswith("Made: gangline_due, gangline_locked")
    assert {index["state"] for index in states(uri).values()} == {"present"}
    assert indexes("ensure", uri).stdout == "Nothing is missing.\n"
    assert json.loads(indexes("ensure", uri, "--json").stdout) == {"made": [], "wrong": []}


async def test_many_may_make_them_at_once(uri: str) -> None:
    """Case 48."""

    async def make() -> None:
        async with open_connection(uri) as connection:
            await make_indexes(connection)

    await asyncio.gather(*(make() for _ in range(8)))
    assert {index["state"] for index in (await asyncio.to_thread(states, uri)).values()} == {"present"}


def test_a_differing_index_is_reported_and_not_dropped(uri: str, raw: Raw) -> None:
    raw.records.create_index("uniqueIdentifier", name="uniqueIdentifier_1")
    result = indexes("ensure", uri)
    assert result.exit_code == 1
    assert "uniqueIdentifier_1 of gangline.records is not as needed: unique, sparse" in result.stderr
    assert "drop uniqueIdentifier_1 with the mongo shell, and run `gangline indexes ensure`" in result.stderr
    assert "unique" not in raw.records.index_information()["uniqueIdentifier_1"]
    assert states(uri)["gangline_due"]["state"] == "present", "the others are made"


def test_the_same_index_under_another_name_is_in_the_way_and_said_so(uri: str, raw: Raw) -> None:
    raw.records.create_index("lockId", name="mine", sparse=True)
    result = indexes("ensure", uri, "--json")
    assert result.exit_code == 1
    [wrong] = json.loads(result.stdout)["wrong"]
    assert (wrong["name"], wrong["state"]) == ("jobs_dogs_records_lock_id", "differing")
    assert wrong["note"] == "its keys are there under another name, mine"
    assert "drop mine" in wrong["remedy"]
    assert "mine" in names(raw)


def test_other_indexes_on_the_same_keys_are_not_in_the_way(uri: str, raw: Raw) -> None:
    raw.records.create_index("lockId", name="mine")
    assert indexes("ensure", uri).exit_code == 0
    assert states(uri)["mine"]["state"] == "foreign"


def test_without_the_right_to_it_is_an_error_in_one_line(uri: str, raw: Raw) -> None:
    with failing(raw, "createIndexes", errorCode=13):
        result = indexes("ensure", named(uri))
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


async def test_a_worker_without_the_right_is_told_what_to_run(
    uri: str, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 48."""
    with failing(raw, "createIndexes", errorCode=13), caplog.at_level(logging.WARNING, "gangline.indexes"):
        async with open_connection(named(uri)) as connection:
            await ensure_indexes(connection)
    assert len(caplog.records) == 3
    assert all("`gangline indexes ensure`" in record.getMessage() for record in caplog.records)


async def test_an_index_may_take_longer_than_an_operation(uri: str, raw: Raw) -> None:
    """Otherwise a worker on a queue of millions would give each build up, and begin it again."""
    once = {"times": 1}
    with failing(raw, "createIndexes", mode=once, blockConnection=True, blockTimeMS=700):
        async with open_connection(named(uri, timeoutMS="300")) as connection:
            await ensure_indexes(connection)
    assert {index.name for index in RECORD_INDEXES} <= names(raw)


# Dropping what is legacy


def test_nothing_is_dropped_without_yes(node: Raw, uri: str) -> None:
    code, told = drop_legacy(uri)
    assert (code, told["reasons"], told["dropped"], told["observed_seconds"]) == (0, [], [], 0.02)
    assert [index["name"] for index in told["indexes"]] == [NODE_BY_NAME, OLD_BY_PRIORITY]
    shown = indexes("drop-legacy", uri, "--observe", "20ms").stdout
    assert "Safe to drop: no use within 20ms, no record without a partition" in shown
    assert {NODE_BY_NAME, OLD_BY_PRIORITY} <= names(node)


def test_only_what_is_legacy_is_dropped(node: Raw, uri: str) -> None:
    node.records.create_index("mine")
    code, told = drop_legacy(uri, "--yes")
    assert (code, told["dropped"]) == (0, [NODE_BY_NAME, OLD_BY_PRIORITY])
    assert names(node) == {"_id_", "mine_1", *(index.name for index in RECORD_INDEXES)}
    assert indexes("drop-legacy", uri).stdout == "There is no such legacy index.\n"


def test_some_may_be_named(node: Raw, uri: str) -> None:
    code, told = drop_legacy(uri, OLD_BY_PRIORITY, "--yes")
    assert (code, told["dropped"]) == (0, [OLD_BY_PRIORITY])
    assert NODE_BY_NAME in names(node)


@pytest.mark.parametrize("name", ["gangline_due", "jobName_1", "_id_", "mine_1"])
def test_what_is_not_legacy_cannot_be_named(node: Raw, uri: str, name: str) -> None:
    node.records.create_index("mine")
    before = names(node)
    code, told = drop_legacy(uri, name, "--yes")
    assert (code, told["indexes"], told["dropped"]) == (0, [], [])
    assert names(node) == before


@contextmanager
def node_worker(raw: Raw) -> Iterator[None]:
    """A Node worker that looks for jobs until the block is left."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(0.001):
            node_claim(raw.records, ["a"], 1)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_nothing_is_dropped_while_it_is_in_use(node: Raw, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.cli.indexes._LOOK_EVERY", 0.02)
    with node_worker(node):
        result = indexes("drop-legacy", uri, "--observe", "10s", "--yes")
        assert result.exit_code == 1
        assert f"{NODE_BY_NAME}: it is in use, for Node 4.6.5 and later" in result.stderr
        assert OLD_BY_PRIORITY not in result.stderr
        assert {NODE_BY_NAME, OLD_BY_PRIORITY} <= names(node)
        assert drop_legacy(uri, OLD_BY_PRIORITY, "--yes")[0] == 0, "the other one may go"


def test_use_in_the_past_does_not_count(node: Raw, uri: str) -> None:
    node_claim(node.records, ["a"], 1)
    assert drop_legacy(uri)[0] == 0


def test_nothing_is_dropped_while_records_without_a_partition_are_there(node: Raw, uri: str) -> None:
    record = node_record("old")
    del record["partition"]
    node.records.insert_one(record)
    code, told = drop_legacy(uri, "--yes")
    assert (code, told["dropped"]) == (1, [])
    [reason] = told["reasons"]
    assert reason.startswith("there are records without a partition")


@pytest.mark.parametrize("own", [False, True])
def test_a_lease_of_a_node_worker_speaks_against_it(node: Raw, uri: str, own: bool) -> None:
    """It runs a job for minutes, uses no index meanwhile, and will claim again."""
    record = due_record(datetime.now(UTC), **locked_until(datetime.now(UTC) + timedelta(minutes=1)))
    if not own:
        record["lockId"] = str(uuid.uuid4())  # whatever else a worker of Gangline's left there
    node.records.insert_one(record)
    code, told = drop_legacy(uri, "--yes")
    assert (code, bool(told["reasons"]), bool(told["dropped"])) == ((0, False, True) if own else (1, True, False))


async def test_what_is_seen_once_stays_seen(node: Raw, uri: str) -> None:
    """A worker repairs a record without partition within milliseconds."""
    async with open_connection(uri) as connection:
        watch = LegacyWatch(connection)
        record_id = node_record("old", partition=None)["_id"]
        node.records.insert_one(node_record("old", _id=record_id, partition=None))
        await watch.look()
        node.records.update_one({"_id": record_id}, {"$set": {"partition": 0}})
        await watch.look()
        assert len(watch.reasons()) == 1


async def test_an_index_that_is_gone_meanwhile_is_no_error(node: Raw, uri: str) -> None:
    async with open_connection(uri) as connection:
        watch = LegacyWatch(connection)
        await watch.look()
        node.records.drop_index(NODE_BY_NAME)
        assert await watch.drop() == [NODE_BY_NAME, OLD_BY_PRIORITY]
        assert OLD_BY_PRIORITY not in names(node)


def test_a_server_that_does_not_tell_the_use_is_not_trusted(node: Raw, uri: str) -> None:
    with failing(node, "aggregate", errorCode=13):
        code, told = drop_legacy(named(uri), "--yes")
    assert (code, told["dropped"]) == (1, [])
    assert told["reasons"][0] == f"{NODE_BY_NAME}: the server does not tell whether it is in use"


def test_a_wrong_duration_is_refused_by_name() -> None:
    result = in_process("indexes", "drop-legacy", "--observe", "soon", "--uri", "mongodb://127.0.0.1:1/")
    assert result.exit_code == 2
    assert "observe: 'soon' is not a duration" in result.stderr


@pytest.mark.parametrize("command", ["status", "ensure", "drop-legacy"])
def test_without_a_uri_the_remedy_is_told(command: str) -> None:
    result = in_process("indexes", command)
    assert result.exit_code == 2
    assert "GANGLINE_URI" in result.stderr
