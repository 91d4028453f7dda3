"""Starting a worker: what goes wrong for a moment is tried again, what is wrong for good is told."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from gangline import ConfigurationError, Gangline, ServerUnsuitable
from gangline.devserver import free_port
from gangline.jobs.settings import ClaimMode
from gangline.store import capabilities as capabilities_module
from support.apps import Raw, eventually, failing, running, soon


def test_an_app_without_jobs_has_no_worker() -> None:
    with pytest.raises(ConfigurationError, match="jobs: the app defines none"):
        Gangline("mongodb://localhost:1/x").worker()


def test_an_app_without_a_uri_has_no_worker() -> None:
    app = Gangline()

    @app.event()
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="uri: none was given"):
        app.worker()


FAILURES: dict[str, dict[str, Any]] = {
    "away": {"closeConnection": True},
    "unreachable behind a router": {"errorCode": 6},
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("skip", [0, 1, 2], ids=["records", "history", "lock id index"])
async def test_a_failure_for_a_moment_only_delays_the_start(
    impatient_app: Gangline, raw: Raw, caplog: pytest.LogCaptureFixture, skip: int, how: str
) -> None:
    """Case 62, at each command of the start that reads indexes."""

    @impatient_app.event()
    async def work() -> None: ...

    await work.schedule()
    with failing(raw, "listIndexes", mode={"skip": skip}, **FAILURES[how]) as point:
        async with running(impatient_app):
            await eventually(lambda: "the server does not answer yet" in caplog.text)
            point.off()
            await eventually(raw.finished)
    assert caplog.text.count("the server does not answer yet") == 1


async def test_a_server_that_comes_late_is_waited_for(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """Case 62: nobody listens at first; and a worker that waits can be stopped."""
    async with Gangline(f"mongodb://127.0.0.1:{free_port()}/x?serverSelectionTimeoutMS=50") as app:

        @app.event()
        async def work() -> None: ...

        async with running(app) as worker:
            await eventually(lambda: "the server does not answer yet" in caplog.text)
            assert worker.running_executions == ()
            assert worker.handed_back == 0


async def test_wrong_credentials_are_told_at_the_start(uri: str) -> None:
    parts = urlsplit(uri)
    wrong = urlunsplit(parts._replace(netloc=f"somebody:wrong@{parts.netloc}"))
    async with Gangline(wrong) as app:

        @app.event()
        async def work() -> None: ...

        with pytest.raises(ConfigurationError, match="uri: the server refused it"):
            await soon(app.worker().run())


async def test_a_server_that_is_too_old_is_told_at_the_start(app: Gangline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 47. No old server can be had, so the bound is moved instead."""
    monkeypatch.setattr(capabilities_module, "OLDEST_WIRE_VERSION", 99)

    @app.event()
    async def work() -> None: ...

    with pytest.raises(ServerUnsuitable, match="wire version"):
        await soon(app.worker().run())


async def test_a_claim_protocol_that_the_server_lacks_is_told_at_the_start(app: Gangline, raw: Raw) -> None:
    if raw.client.admin.command("hello")["maxWireVersion"] >= 25:
        pytest.skip("this server sorts updates")

    @app.event()
    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match=r"claim: 'sorted-update' needs MongoDB 8\.0"):
        await soon(app.worker(claim="sorted-update").run())


PROTOCOLS: list[ClaimMode] = ["auto", "batch", "find-and-modify"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_each_claim_protocol_runs_jobs(
    app: Gangline, raw: Raw, protocol: ClaimMode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gangline.worker")
    runs: list[int] = []

    @app.event()
    async def work(number: int) -> None:
        runs.append(number)

    await app.schedule_many([work.call(number) for number in range(20)])
    async with running(app, claim=protocol):
        await eventually(raw.finished)
    assert sorted(runs) == list(range(20))
    [line] = [line for line in caplog.records if getattr(line, "event", "") == "worker_started"]
    assert line.__dict__["claim_protocol"]


async def test_sorted_updates_run_jobs_where_the_server_can(sorted_uri: str) -> None:
    runs: list[int] = []
    async with Gangline(sorted_uri, partitions=4) as app:

        @app.event()
        async def work(number: int) -> None:
            runs.append(number)

        await app.schedule_many([work.call(number) for number in range(20)])
        with Raw(sorted_uri) as raw:
            async with running(app, claim="sorted-update"):
                await eventually(raw.finished)
            assert raw.statuses() == ["success"] * 20
    assert sorted(runs) == list(range(20))


async def test_ten_workers_start_at_once_on_an_empty_database(app: Gangline, raw: Raw) -> None:
    """Case 48: they make the indexes together."""

    @app.event()
    async def work() -> None: ...

    @app.recurrent(every="1h")
    async def tick() -> None: ...

    workers = [app.worker(grace=0) for _ in range(10)]
    await asyncio.gather(*(soon(worker.start()) for worker in workers))
    await asyncio.gather(*(worker.stop() for worker in workers))
    assert raw.record()["nextRunAt"] > datetime.now(UTC)
    assert "gangline_due" in raw.records.index_information()
