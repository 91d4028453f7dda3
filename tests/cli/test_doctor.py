"""`gangline doctor`: each check on a real server, well and not well."""

import asyncio
import gc
import json
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from gangline.devserver import GuardedProcess, find_mongod, free_port
from gangline.store.diagnosis import Expected, examine
from gangline.store.diagnosis.examine import CHECKS
from gangline.store.diagnosis.queue import uneven
from support.apps import Raw, failing, named
from support.cli import gangline, in_process
from support.examined import WORKER, doctor, set_up
from support.records import due_record, locked_until, open_connection

Document = dict[str, Any]


def now() -> datetime:
    return datetime.now(UTC)


def fresh(**fields: Any) -> Document:
    """A record of a served job that is due just now."""
    return due_record(now(), **{"nextRunAt": now(), **fields})


def recurrent(name: str = "cleanUp", **fields: Any) -> Document:
    return fresh(jobName=name, **{"type": "recurrent", **fields})


@pytest.fixture
def raw(uri: str) -> Iterator[Raw]:
    with Raw(uri) as found:
        yield found


@pytest.fixture
def _served(uri: str) -> None:
    set_up(uri, WORKER)


def put(raw: Raw, *documents: Document) -> None:
    raw.records.insert_many(documents)


served = pytest.mark.usefixtures("_served")


@served
def test_a_queue_that_is_well(uri: str, raw: Raw) -> None:
    put(raw, fresh(partition=1), recurrent(), fresh(**locked_until(now() + timedelta(minutes=1))))
    found = doctor(uri)
    assert found.code == 0, found.checks
    assert list(found.checks) == list(CHECKS)
    assert not found.not_well()
    assert "claim by" in found.detail("server")
    assert "workers: 1; partitions: 4; claims: batch; shape: by-name" in found.detail("workers")
    assert "in partition 0" in found.detail("claim-by-name") or "in partition 1" in found.detail("claim-by-name")
    assert found.detail("claim-by-priority").endswith("no worker uses this shape")


@served
def test_people_are_shown_the_remedies(uri: str, raw: Raw) -> None:
    put(raw, fresh(jobName="[red]x"))
    result = in_process("doctor", "--uri", uri)
    assert result.exit_code == 1
    shown = " ".join(result.stdout.split())
    assert "✓ server MongoDB" in shown
    assert "! unserved-jobs no running worker of Gangline's serves [red]x 1 → Start a worker" in shown


# The server


@pytest.fixture
def _forgotten_sockets() -> Iterator[None]:
    """PyMongo forgets the socket whose connecting is under way when its client is closed."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.usefixtures("_forgotten_sockets")
def test_an_unreachable_server_is_the_one_thing_that_is_told() -> None:
    found = doctor("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50")
    assert found.code == 2
    [check] = found.checks.values()
    assert (check["name"], check["status"]) == ("server", "broken")
    assert check["detail"].startswith("the server cannot be reached: 127.0.0.1:1")


def test_a_server_that_is_too_old_is_broken(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 47."""
    monkeypatch.setattr("gangline.store.capabilities.OLDEST_WIRE_VERSION", 1_000)
    found = doctor(uri)
    assert found.code == 2
    assert list(found.checks) == ["server"]
    assert "needs 1000" in found.detail("server")


def test_on_mongodb_8_workers_claim_by_sorted_update(sorted_uri: str) -> None:
    set_up(sorted_uri, WORKER)
    found = doctor(sorted_uri)
    assert "workers claim by sorted-update" in found.detail("server")
    assert found.code < 2, found.checks


def test_a_standalone_server_is_warned_of() -> None:
    """Case 45: it works."""
    port, folder = free_port(), Path(tempfile.gettempdir()) / f"gangline-alone-{uuid.uuid4().hex}"
    command = [str(find_mongod()), "--dbpath", str(folder), "--port", str(port), "--bind_ip", "127.0.0.1"]
    server = GuardedProcess([*command, "--nounixsocket"], folder=folder, temporary=True)
    server.start("Waiting for connections")
    try:
        uri = f"mongodb://127.0.0.1:{port}/alone"
        set_up(uri, WORKER)
        found = doctor(uri)
    finally:
        server.stop()
    assert found.code == 1
    assert found.not_well() == {"topology"}


@served
@pytest.mark.parametrize(("seconds", "said"), [(120, "120.0 s ahead of"), (-120, "120.0 s behind")])
def test_a_clock_that_is_off_is_told(uri: str, monkeypatch: pytest.MonkeyPatch, seconds: int, said: str) -> None:
    """Case 23."""
    monkeypatch.setattr("gangline.store.clock.ServerClock.skew", timedelta(seconds=seconds))
    found = doctor(uri)
    assert found.not_well() == {"clock"}
    assert said in found.detail("clock")


# Workers and indexes


def test_no_worker_is_warned_of(uri: str) -> None:
    set_up(uri)
    assert doctor(uri).not_well() == {"workers"}


@served
def test_a_worker_that_was_not_seen_for_minutes_does_not_count(uri: str, raw: Raw) -> None:
    raw.client.get_default_database()["gangline.workers"].update_one(
        {}, {"$set": {"seenAt": now() - timedelta(minutes=4)}}
    )
    assert "workers" in doctor(uri).not_well()


def test_workers_that_differ_in_their_partitions_are_named(uri: str) -> None:
    set_up(uri, WORKER, replace(WORKER, name="host:2:two", partitions=8))
    found = doctor(uri)
    assert found.not_well() == {"workers"}
    assert found.detail("workers") == "partitions differ: 4 in host:1:one; 8 in host:2:two"


@served
def test_workers_that_differ_from_what_is_expected_are_named(uri: str) -> None:
    found = doctor(uri, "--partitions", "16")
    assert found.detail("workers") == "partitions differ: 4 in host:1:one; 16 in what was expected"


@served
def test_a_missing_index_is_broken_while_workers_run(uri: str, raw: Raw) -> None:
    """Case 67. What rests on it is not told to be well."""
    put(raw, fresh())
    raw.records.drop_index("gangline_due")
    found = doctor(uri)
    assert found.code == 2
    assert found.checks["indexes"] == {
        "name": "indexes",
        "status": "broken",
        "detail": "missing: gangline_due",
        "remedy": "Run `gangline indexes ensure`",
    }
    assert found.detail("oldest-due") == "it cannot be told while an index is missing"
    assert {found.status(name) for name in ("unserved-jobs", "oldest-due", "claim-by-name")} == {"warning"}


def test_an_index_that_no_worker_has_made_yet_is_only_warned_of(uri: str) -> None:
    found = doctor(uri)
    assert (found.code, found.status("indexes")) == (1, "warning")


@served
def test_a_differing_index_is_broken(uri: str, raw: Raw) -> None:
    raw.records.drop_index("uniqueIdentifier_1")
    raw.records.create_index("uniqueIdentifier", name="uniqueIdentifier_1")
    found = doctor(uri)
    assert (found.code, found.status("indexes")) == (2, "broken")
    assert found.detail("indexes") == "uniqueIdentifier_1 is not as needed: unique, sparse"
    assert "drop uniqueIdentifier_1" in found.checks["indexes"]["remedy"]


@served
def test_the_indexes_of_the_node_side_are_no_fault(uri: str, raw: Raw) -> None:
    raw.records.create_index([("priority", -1), ("nextRunAt", 1)])
    found = doctor(uri)
    assert found.code == 0
    assert found.detail("indexes").endswith("for Node workers: priority_-1_nextRunAt_1")


# The way of a claim


@served
def test_what_stands_in_front_of_a_claim_is_told(uri: str, raw: Raw) -> None:
    put(raw, *(fresh(status="maxTriesReached") for _ in range(200)), fresh())
    found = doctor(uri)
    assert found.not_well() == {"claim-by-name", "dead-jobs"}
    assert "documents examined for the next record in partition 0 (job names: 2)" in found.detail("claim-by-name")


def test_by_priority_is_judged_only_where_it_is_used(uri: str, raw: Raw) -> None:
    set_up(uri, WORKER, replace(WORKER, name="host:2:two", jobs={"other": "event"}))
    put(raw, *(fresh(jobName="other", priority=200) for _ in range(200)), fresh())
    assert not doctor(uri, "--partitions", "4").not_well()
    set_up(uri, replace(WORKER, shape="by-priority"))
    found = doctor(uri)
    assert found.not_well() == {"claim-by-priority"}
    assert found.detail("claim-by-priority").startswith("201 keys and 201 documents examined")


def test_more_than_200_names_are_not_sorted_in_memory(uri: str, raw: Raw) -> None:
    names = [f"job{number:03}" for number in range(260)]
    set_up(uri, replace(WORKER, jobs=dict.fromkeys(names, "event"), shape="by-priority"))
    put(raw, *(fresh(jobName=name) for name in names))
    found = doctor(uri)
    assert not found.not_well()
    assert "(job names: 200); no worker uses this shape" in found.detail("claim-by-name")
    assert "(job names: 260)" in found.detail("claim-by-priority")


# Partitions


@served
def test_records_that_crowd_in_one_partition_are_told(uri: str, raw: Raw) -> None:
    put(raw, *(fresh(partition=2) for _ in range(500)))
    found = doctor(uri)
    assert found.not_well() == {"partition-balance"}
    assert found.detail("partition-balance") == "free records per partition: 0 to 500"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([99] * 4, False), ([500, 500], False), ([0, 500], True), ([401, 1, 1, 1], True), ([90, 1, 1, 1], False)],
)
def test_only_many_records_can_be_uneven(counts: list[int], expected: bool) -> None:
    assert uneven(counts) is expected


@served
@pytest.mark.parametrize("partition", [None, -1, 4, 1.5, "1"])
def test_records_outside_the_partitions_are_counted(uri: str, raw: Raw, partition: Any) -> None:
    put(raw, fresh(partition=3.0), fresh(partition=partition), fresh(partition=partition))
    found = doctor(uri)
    assert found.not_well() == {"partition-range"}
    assert found.detail("partition-range") == "records outside the 4 partitions: 2"


@served
def test_a_count_has_a_bound(uri: str, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    put(raw, *(fresh(partition=None) for _ in range(12)))
    for module in ("check", "queue"):
        monkeypatch.setattr(f"gangline.store.diagnosis.{module}.COUNT_UP_TO", 10)
    monkeypatch.setattr("gangline.store.diagnosis.queue._count.__defaults__", (10,))
    assert doctor(uri).detail("partition-range") == "records outside the 4 partitions: 10 or more"


# Records


@served
def test_jobs_that_no_running_worker_serves_are_named(uri: str, raw: Raw) -> None:
    """Case 37."""
    put(raw, fresh(), fresh(jobName="elsewhere"), fresh(jobName="elsewhere", nextRunAt=now() + timedelta(days=1)))
    put(raw, *(fresh(jobName=f"x{number:02}") for number in range(12)))
    found = doctor(uri)
    assert found.not_well() == {"unserved-jobs"}
    assert "serves elsewhere 2, x00 1" in found.detail("unserved-jobs")
    assert found.detail("unserved-jobs").endswith("x08 1, and 3 other names")


@served
def test_recurrent_records_without_a_definition_are_named(uri: str, raw: Raw) -> None:
    """Case 21."""
    put(raw, recurrent(), recurrent("removed"))
    found = doctor(uri)
    assert found.not_well() == {"orphaned-recurrent", "unserved-jobs"}
    assert found.detail("orphaned-recurrent").endswith("defines removed")


@served
@pytest.mark.parametrize("record", [recurrent("resizeImage"), fresh(jobName="cleanUp")], ids=["recurrent", "event"])
def test_records_of_another_type_than_their_definition_are_named(uri: str, raw: Raw, record: Document) -> None:
    """Cases 57 and 72."""
    put(raw, {**record, "nextRunAt": now()})
    found = doctor(uri)
    assert found.not_well() == {"job-types"}
    assert record["jobName"] in found.detail("job-types")


DEAD = {"status": "maxTriesReached", "tries": 3, "lastError": {"type": "ValueError", "message": "no"}}


def dead(**fields: Any) -> Document:
    return fresh(**DEAD, maxTriesReachedAt=now(), **fields)


@served
def test_dead_jobs_are_told_with_their_errors(uri: str, raw: Raw) -> None:
    put(raw, dead(expiresAt=now() + timedelta(days=7)), dead(), fresh())
    found = doctor(uri)
    assert found.not_well() == {"dead-jobs"}
    assert found.detail("dead-jobs") == "2 dead jobs: resizeImage (ValueError) 2"


@served
def test_in_a_large_queue_only_the_dead_that_expire_are_counted(
    uri: str, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.store.diagnosis.queue._SCANNED_UP_TO", 0)
    put(raw, dead(), fresh())
    assert "those kept for ever are not counted" in doctor(uri).detail("dead-jobs")
    put(raw, dead(expiresAt=now() + timedelta(days=7)))
    found = doctor(uri)
    assert found.not_well() == {"dead-jobs"}
    assert found.detail("dead-jobs").startswith("1 dead jobs that will expire")


@served
def test_a_job_that_has_been_due_for_long_is_told(uri: str, raw: Raw) -> None:
    put(raw, fresh(nextRunAt=now() - timedelta(seconds=30)))
    assert not doctor(uri).not_well()
    put(raw, fresh(nextRunAt=now() - timedelta(hours=2)), fresh(jobName="cleanUp", type="recurrent"))
    found = doctor(uri)
    assert found.not_well() == {"oldest-due"}
    assert found.detail("oldest-due").startswith("a record of resizeImage has been due for 2h")


@served
def test_leases_that_ended_long_ago_are_told(uri: str, raw: Raw) -> None:
    put(raw, fresh(**locked_until(now() - timedelta(seconds=1))))
    assert not doctor(uri).not_well()
    put(raw, fresh(**locked_until(now() - timedelta(minutes=1))))
    found = doctor(uri)
    assert found.not_well() == {"expired-leases"}
    assert found.detail("expired-leases").endswith("ago: resizeImage 1")


# Bounds


@served
def test_no_read_goes_without_an_index_or_a_bound_on_its_time(
    uri: str, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own profile of what the doctor sent, on a queue with something of everything."""
    monkeypatch.setattr("gangline.store.diagnosis.queue._SCANNED_UP_TO", 0)
    crowd = [fresh(jobName=name, partition=number % 4) for number in range(500) for name in ("resizeImage", "other")]
    put(raw, *crowd, recurrent(), dead(expiresAt=now()), fresh(**locked_until(now() - timedelta(minutes=1))))
    database = raw.client.get_default_database()
    database.command("profile", 2)
    try:
        assert doctor(named(uri)).code == 1
    finally:
        database.command("profile", 0)
    profile = list(database["system.profile"].find({"appName": "under-test", "ns": raw.records.full_name}))
    sent = [entry for entry in profile if "planSummary" in entry and "hint" in str(entry["command"])]
    assert len(sent) > 10
    assert not [entry["command"] for entry in profile if "COLLSCAN" in entry.get("planSummary", "")]
    assert not [entry["command"] for entry in sent if entry["command"].get("maxTimeMS", 10**9) > 5_000]
    names = [entry for entry in sent if entry["command"].get("sort", {}).get("jobName")]
    assert len(names) >= 3
    assert max(entry["docsExamined"] for entry in names) == 1


@served
def test_a_check_that_takes_too_long_says_so_and_the_others_go_on(uri: str, raw: Raw) -> None:
    with failing(raw, "aggregate", errorCode=50):
        found = doctor(named(uri))
    assert found.code == 1
    assert found.detail("expired-leases").startswith("it cannot be told")
    assert found.status("oldest-due") == "ok"


@served
def test_a_server_that_goes_away_in_the_middle_is_broken(uri: str, raw: Raw) -> None:
    with failing(raw, "explain", closeConnection=True):
        found = doctor(named(uri, retryReads="false"))
    assert found.code == 2
    assert found.not_well() == {"claim-by-name", "claim-by-priority"}
    assert found.detail("claim-by-name").startswith("the server cannot be reached")


# With an app

APP = """
from gangline import Gangline
app = Gangline({uri!r}, prefix="shop_", partitions=2)
@app.event()
async def resize_image() -> None: ...
@app.recurrent(every="1h")
async def tidy() -> None: ...
"""


def test_an_app_tells_what_is_expected_and_where(uri: str, raw: Raw, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.format(uri=uri))
    shop = raw.client.get_default_database()["shop_records"]
    shop.insert_many([recurrent("resize_image"), recurrent("removed"), recurrent("tidy")])
    assert in_process("indexes", "ensure", "--uri", uri, "--prefix", "shop_").exit_code == 0
    with gangline("doctor", "shop:app", "--json", cwd=tmp_path) as command:
        assert command.ends() == 1, command.output
        checks = {check["name"]: check for check in json.loads(command.output)["checks"]}
    assert "resize_image is defined as event" in checks["job-types"]["detail"]
    assert checks["orphaned-recurrent"]["detail"].endswith("defines removed")
    assert checks["partition-balance"]["detail"] == "free records per partition: 0 to 3"


def test_without_a_uri_the_remedy_is_told() -> None:
    result = in_process("doctor")
    assert result.exit_code == 2
    assert all(remedy in result.stderr for remedy in ("--uri", "GANGLINE_URI", "`gangline dev`"))


def test_the_checks_may_be_made_from_a_program(uri: str) -> None:
    async def act() -> list[str]:
        async with open_connection(uri) as connection:
            return [check.name for check in await examine(connection, Expected())]

    assert asyncio.run(act()) == list(CHECKS)


def test_a_server_without_a_database_of_ours_is_not_changed(uri: str) -> None:
    doctor(uri)
    client: MongoClient[Document]
    with MongoClient(uri) as client:
        assert client.get_default_database().list_collection_names() == []
