"""How a worker tells people that it runs."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from gangline import Gangline
from gangline.store.registry import Registry, WorkerEntry
from gangline.worker.presence import Presence
from support.apps import Raw, eventually, running, soon

ENTRY = WorkerEntry(
    name="host:1:abc",
    host="host",
    pid=1,
    version="1.2.3",
    partitions=16,
    concurrency=32,
    jobs={"work": "event"},
    claim_protocol="batch",
    shape="by-name",
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@dataclass
class FakeRegistry:
    """Keeps what it is given; `error` is raised by each write."""

    published: list[WorkerEntry] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    error: PyMongoError | None = None
    attempts: int = 0
    during: Callable[[], None] = lambda: None

    async def publish(self, entry: WorkerEntry) -> None:
        self._attempt()
        self.published.append(entry)
        self.during()

    async def withdraw(self, name: str) -> None:
        self._attempt()
        self.withdrawn.append(name)

    def _attempt(self) -> None:
        self.attempts += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)


async def test_it_publishes_at_once_and_again_after_a_change(registry: FakeRegistry) -> None:
    current = ENTRY
    presence = Presence(registry, lambda: current)
    task = asyncio.create_task(presence.run())
    await eventually(lambda: len(registry.published) == 1)
    current = replace(ENTRY, shape="by-priority")
    presence.changed()
    await eventually(lambda: len(registry.published) == 2)
    await end(task)
    assert registry.published == [ENTRY, current]


async def test_it_publishes_again_when_nothing_changes(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.worker.presence.PUBLISH_EVERY", timedelta(milliseconds=5))
    task = asyncio.create_task(Presence(registry, lambda: ENTRY).run())
    await eventually(lambda: len(registry.published) >= 3)
    await end(task)


async def test_a_change_while_it_publishes_is_not_forgotten(registry: FakeRegistry) -> None:
    presence = Presence(registry, lambda: ENTRY)

    def change_once() -> None:
        if len(registry.published) == 1:
            presence.changed()

    registry.during = change_once
    task = asyncio.create_task(presence.run())
    await eventually(lambda: len(registry.published) == 2)
    await end(task)


@pytest.mark.parametrize("error", [AutoReconnect("away"), OperationFailure("not allowed", 13)], ids=repr)
async def test_a_failure_is_only_logged_and_the_next_change_is_published(
    registry: FakeRegistry, error: PyMongoError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gangline.presence")
    registry.error = error
    presence = Presence(registry, lambda: ENTRY)
    task = asyncio.create_task(presence.run())
    await eventually(lambda: registry.attempts)
    await presence.withdraw()
    assert [record.__dict__["event"] for record in caplog.records] == ["presence_failed"] * 2
    assert all(record.levelno == logging.INFO for record in caplog.records)
    registry.error = None
    presence.changed()
    await eventually(lambda: registry.published)
    await end(task)


async def test_it_withdraws_under_its_name(registry: FakeRegistry) -> None:
    await Presence(registry, lambda: ENTRY).withdraw()
    assert registry.withdrawn == [ENTRY.name]


async def test_a_running_worker_is_listed_and_a_stopped_one_is_not(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def work() -> None: ...

    @app.recurrent(every="1h")
    async def tidy() -> None: ...

    workers = raw.records.database["gangline.workers"]
    async with running(app, concurrency=7) as worker:
        entry = await eventually(workers.find_one)
        [listed] = await Registry(app._connected()).workers()
        assert entry["_id"] == listed.name == worker.name
        assert listed.jobs == {"work": "event", "tidy": "recurrent"}
        assert (listed.partitions, listed.concurrency, listed.pid) == (4, 7, os.getpid())
        assert listed.claim_protocol in {"batch", "sorted-update"}
        assert listed.shape in {"by-name", "by-priority"}
    assert workers.find_one() is None


async def test_a_worker_that_may_not_publish_works_all_the_same(
    app: Gangline, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise OperationFailure("not allowed", 13)

    monkeypatch.setattr(Registry, "publish", refused)
    monkeypatch.setattr(Registry, "withdraw", refused)

    @app.event()
    async def work() -> None: ...

    async with running(app):
        await work.schedule()
        await eventually(raw.finished)
    assert raw.statuses() == ["success"]
