"""`gangline stats` and `gangline jobs`, on a queue in which a worker has run."""

import asyncio
import gc
import json
import re
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Decimal128, ObjectId

from gangline import Gangline
from gangline.cli.output import moment, printable, text
from support.apps import Raw, eventually, running
from support.cli import in_process, scheduled_id

FAILS = "[red]x"


async def fill(uri: str, raw: Raw) -> dict[str, str]:
    """Leave a dead job, a finished one, one that waits, and one that a killed worker left locked; return their ids."""
    async with Gangline(uri) as app:

        @app.event(name=FAILS, max_tries=1)
        async def fails(note: str) -> None:
            raise ValueError(f"[bold]no\x1b[31m {note}\nsecond line")

        @app.event()
        async def works(note: str) -> dict[str, str]:
            return {"note": note}

        ids = {
            "dead": scheduled_id(await fails.schedule(note="[link=x]")),
            "ended": scheduled_id(await works.options(unique="w:1").schedule(note="done")),
            "scheduled": scheduled_id(await works.options(run_in="1h", priority=5).schedule(note="later")),
        }
        async with running(app):
            await eventually(lambda: raw.history.count_documents({}) == 2 and raw.records.count_documents({}) == 2)
        ids["stale"] = scheduled_id(await app.schedule_by_name("elsewhere", {}))
        ids["ready"] = scheduled_id(await app.schedule_by_name("elsewhere", {}))
    locked = {"lockId": "a", "lockedUntil": datetime(2020, 1, 1, tzinfo=UTC), "lockedBy": "host:1:x", "tries": 1}
    raw.records.update_one({"_id": ids["stale"]}, {"$set": locked})
    return ids


@pytest.fixture
def raw(uri: str) -> Iterator[Raw]:
    with Raw(uri) as found:
        yield found


@pytest.fixture
def ids(uri: str, raw: Raw) -> dict[str, str]:
    return asyncio.run(fill(uri, raw))


def as_json(*arguments: str) -> Any:
    result = in_process(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def told(*arguments: str) -> str:
    """The output for people, without the layout."""
    result = in_process(*arguments)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    return " ".join(result.stdout.split())


def test_stats_counts_each_job_in_each_state(uri: str, ids: dict[str, str]) -> None:
    assert len(ids) == 5
    stats = as_json("stats", "--uri", uri)
    assert [
        (job["name"], job["type"], job["ready"], job["stale"], job["dead"], job["scheduled"]) for job in stats["jobs"]
    ] == [
        (FAILS, "event", 0, 0, 1, 0),
        ("elsewhere", "event", 1, 1, 0, 0),
        ("works", "event", 0, 0, 0, 1),
    ]
    assert stats["total"] == {"scheduled": 1, "ready": 1, "running": 0, "stale": 1, "dead": 1}
    assert datetime.fromisoformat(stats["jobs"][1]["oldest_due"]).tzinfo is not None
    shown = told("stats", "--uri", uri)
    assert f"{FAILS} event 0 0 0 0 1" in shown
    assert re.search(r"elsewhere event 0 1 0 1 0 (now|\ds ago)", shown)
    assert "Total 1 1 0 1 1" in shown


def test_stats_of_an_empty_queue_says_so(uri: str) -> None:
    assert told("stats", "--uri", uri) == "The queue is empty."
    assert as_json("stats", "--uri", uri)["jobs"] == []


def test_a_list_shows_what_waits_and_why(uri: str, ids: dict[str, str]) -> None:
    listed = as_json("jobs", "list", "--uri", uri)
    assert {job["_id"]: job["state"] for job in listed} == {
        ids[state]: state for state in ("dead", "stale", "ready", "scheduled")
    }
    shown = told("jobs", "list", "--uri", uri)
    assert rf"{ids['dead']} {FAILS} dead" in shown
    assert r"1 ValueError: [bold]no\x1b[31m [link=x]" in shown
    assert re.search(rf"{ids['scheduled']} works scheduled in (1h|59m\d+s) 0", shown)
    assert re.search(rf"{ids['stale']} elsewhere stale .* 1 lease ends \S+ ago, host:1:x", shown)


@pytest.mark.parametrize("state", ["dead", "stale", "ready", "scheduled"])
def test_a_list_may_be_of_one_state(uri: str, ids: dict[str, str], state: str) -> None:
    assert [job["_id"] for job in as_json("jobs", "list", "--uri", uri, "--state", state)] == [ids[state]]


def test_a_list_may_be_of_one_name_and_says_that_there_are_more(uri: str, ids: dict[str, str]) -> None:
    arguments = ["jobs", "list", "--uri", uri, "--name", "elsewhere"]
    assert {job["_id"] for job in as_json(*arguments)} == {ids["ready"], ids["stale"]}
    assert len(as_json(*arguments, "--limit", "1")) == 1
    assert "There are more; see --limit." in told(*arguments, "--limit", "1")
    assert "There are more" not in told(*arguments, "--limit", "2")
    assert told("jobs", "list", "--uri", uri, "--state", "running") == "No such jobs."


def test_a_dead_job_is_shown_with_its_params_error_and_execution(uri: str, ids: dict[str, str]) -> None:
    shown = as_json("jobs", "show", ids["dead"], "--uri", uri)
    assert (shown["job"]["state"], shown["job"]["params"]) == ("dead", {"note": "[link=x]"})
    [execution] = shown["executions"]
    assert execution["errorMessage"].startswith("[bold]no")
    page = told("jobs", "show", ids["dead"], "--uri", uri)
    assert f"Job {FAILS}" in page
    assert 'Params { "note": "[link=x]" }' in page
    assert r"Last error ValueError: [bold]no\x1b[31m [link=x] second line" in page
    assert "Trace Traceback (most recent call last)" in page
    assert f"Execution {execution['executionId']}: error, try 1" in page


def test_a_locked_job_is_shown_with_its_lease(uri: str, ids: dict[str, str]) -> None:
    page = told("jobs", "show", ids["stale"], "--uri", uri)
    assert "State stale" in page
    assert "(2020-01-01T00:00:00.000+00:00) Lock a Worker host:1:x" in page


def test_a_job_that_only_the_history_knows_is_shown(uri: str, ids: dict[str, str]) -> None:
    shown = as_json("jobs", "show", ids["ended"], "--uri", uri)
    assert shown["job"] is None
    assert [run["result"] for run in shown["executions"]] == [{"note": "done"}]
    page = told("jobs", "show", ids["ended"], "--uri", uri)
    assert "Job works Type event State ended; only the history knows it Unique w:1" in page
    assert 'Result { "note": "done" }' in page


def test_an_unknown_job_is_an_error(uri: str) -> None:
    result = in_process("jobs", "show", "[b]nope", "--uri", uri)
    assert result.exit_code == 1
    assert "there is no job '[b]nope'" in result.stderr
    assert result.stdout == ""


def test_the_address_may_come_from_the_environment(uri: str, raw: Raw) -> None:
    raw.client.get_default_database()["other_records"].insert_one({"jobName": "theirs", "type": "event"})
    result = in_process("stats", "--json", env={"GANGLINE_URI": uri, "GANGLINE_PREFIX": "other_"})
    assert [job["name"] for job in json.loads(result.stdout)["jobs"]] == ["theirs"]


@pytest.mark.parametrize("arguments", [["stats"], ["jobs", "list"], ["jobs", "show", "x"]])
def test_without_a_uri_the_remedy_is_told(arguments: list[str]) -> None:
    result = in_process(*arguments)
    assert result.exit_code == 2
    assert all(remedy in result.stderr for remedy in ("--uri", "GANGLINE_URI", "`gangline dev`"))


@pytest.fixture
def _forgotten_sockets() -> Iterator[None]:
    """PyMongo forgets the socket whose connecting is under way when its client is closed."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.usefixtures("_forgotten_sockets")
def test_an_unreachable_server_is_one_line() -> None:
    result = in_process("stats", "--uri", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50")
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: the server cannot be reached: 127.0.0.1:1: ")
    assert "Topology" not in line


@pytest.mark.usefixtures("_forgotten_sockets")
def test_an_unreachable_server_is_given_up_after_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is a constant of the store; that the first question keeps to it is what may break."""
    monkeypatch.setattr("gangline.store.connection.SERVER_SELECTION_SECONDS", 0.05)
    assert in_process("stats", "--uri", "mongodb://127.0.0.1:1/").exit_code == 1


def test_a_password_stays_out_of_messages() -> None:
    result = in_process("stats", "--uri", "mongodb://u:secret@127.0.0.1:port/")
    assert result.exit_code == 2
    assert "uri: it cannot be read" in result.stderr
    assert "secret" not in result.output


def test_the_version_is_told() -> None:
    assert in_process("--version").stdout.startswith("gangline 0.")


def test_what_json_has_no_form_for_is_printed_as_text() -> None:
    found = printable(
        {
            "at": datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC),
            "id": ObjectId("65a000000000000000000000"),
            "data": b"\x00\xff",
            "price": Decimal128("1.10"),
            "nan": float("nan"),
            "nested": [{"n": 1, "none": None, "yes": True}],
        }
    )
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "at": "2026-01-02T03:04:05.006000+00:00",
        "id": "65a000000000000000000000",
        "data": "AP8=",
        "price": "1.10",
        "nan": "nan",
        "nested": [{"n": 1, "none": None, "yes": True}],
    }


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        (timedelta(milliseconds=3), "now"),
        (timedelta(seconds=75), "1m15s ago"),
        (timedelta(hours=2, minutes=3, seconds=4), "2h3m ago"),
        (timedelta(days=9, hours=5), "1w2d ago"),
        (timedelta(milliseconds=-250), "in 250ms"),
        (timedelta(days=-1, hours=-2, minutes=-3), "in 1d2h"),
    ],
)
def test_moments_are_told_in_two_units(passed: timedelta, expected: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert moment(now - passed, now) == expected


def test_a_terminal_is_never_sent_what_it_would_obey() -> None:
    assert text("a\x1b[2Jb\r\tc\nd[bold]é").plain == "a\\x1b[2Jb\\r\tc\nd[bold]é"
