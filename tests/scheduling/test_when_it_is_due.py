"""When a scheduled job becomes due, and by whose clock."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gangline import ConfigurationError, Gangline
from gangline.jobs.scheduling import ScheduleOptions
from gangline.store import connection
from gangline.store.clock import ServerClock
from support.apps import Raw, eventually, named, running

NEAR = timedelta(seconds=10)
LAST = datetime.max.replace(tzinfo=UTC, microsecond=999_000)


async def due(app: Gangline, raw: Raw, options: ScheduleOptions) -> datetime:
    """When a job with `options` is due."""
    scheduled = await app.schedule_by_name("other", **options)
    instant: datetime = raw.record(_id=scheduled.id)["nextRunAt"]
    return instant


def server_time(raw: Raw) -> datetime:
    now: datetime = raw.client.admin.command("hello")["localTime"]
    return now.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("run_in", "length"),
    [
        (0, timedelta(0)),
        (1.5, timedelta(seconds=1.5)),
        ("1h30m", timedelta(minutes=90)),
        (timedelta(days=30), timedelta(days=30)),
        ("30d", timedelta(days=30)),
    ],
)
async def test_run_in_counts_from_now(app: Gangline, raw: Raw, run_in: Any, length: timedelta) -> None:
    """Case 22."""
    before = server_time(raw)
    instant = await due(app, raw, {"run_in": run_in})
    assert before + length - timedelta(seconds=1) <= instant <= server_time(raw) + length


@pytest.mark.parametrize("run_in", [timedelta.max, timedelta(days=3_000_000), "500000w"], ids=str)
async def test_run_in_beyond_the_calendar_is_its_end(app: Gangline, raw: Raw, run_in: Any) -> None:
    """Case 22."""
    assert (await due(app, raw, {"run_in": run_in})).year == 9999


@pytest.mark.parametrize(
    ("run_at", "stored"),
    [
        (datetime(2100, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2100, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (datetime(2100, 1, 1, tzinfo=ZoneInfo("America/Santiago")), datetime(2100, 1, 1, 3, tzinfo=UTC)),
        (datetime(2100, 1, 1, tzinfo=timezone(timedelta(hours=5.5))), datetime(2099, 12, 31, 18, 30, tzinfo=UTC)),
        (datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)),
        (datetime.max.replace(tzinfo=UTC), LAST),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), LAST),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=14))), LAST - timedelta(hours=14)),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), datetime.min.replace(tzinfo=UTC)),
    ],
    ids=str,
)
async def test_run_at_is_the_instant_whatever_its_zone(
    app: Gangline, raw: Raw, run_at: datetime, stored: datetime
) -> None:
    """Case 22."""
    assert await due(app, raw, {"run_at": run_at}) == stored


async def test_a_job_of_the_far_future_leaves_the_worker_idle_and_does_not_run(app: Gangline, raw: Raw) -> None:
    """Case 22."""
    seen: list[str] = []

    @app.event()
    async def note(when: str) -> None:
        seen.append(when)

    await note.options(run_in="30d").schedule("in 30 days")
    await note.options(run_at=datetime(2100, 1, 1, tzinfo=UTC)).schedule("in 2100")
    await note.options(run_at=datetime.max.replace(tzinfo=UTC)).schedule("at the end")
    await note.options(run_in=timedelta.max).schedule("after the end")
    async with running(app):
        await note.options(run_in="50ms").schedule("soon")
        await eventually(lambda: seen)
        await note.options(priority=-1).schedule("last")
        await eventually(lambda: "last" in seen)
    assert seen == ["soon", "last"]
    assert raw.records.count_documents({"lastRunAt": None}) == 4


@pytest.mark.parametrize("run_at", [datetime(2030, 1, 1), "2030-01-01", 1893456000, None], ids=repr)  # noqa: DTZ001
async def test_an_instant_without_a_zone_is_refused_with_the_remedy(app: Gangline, raw: Raw, run_at: Any) -> None:
    """Case 24."""
    with pytest.raises(ConfigurationError, match=r"run_at: .*Give an aware datetime"):
        await app.schedule_by_name("other", run_at=run_at)
    assert raw.empty()


@pytest.mark.parametrize("run_in", [-1, timedelta(days=-1), "soon", "-5m", None, True, float("nan"), "1e9w"], ids=repr)
async def test_a_wrong_duration_is_refused_with_the_remedy(app: Gangline, raw: Raw, run_in: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"run_in: .*Give a duration"):
        await app.schedule_by_name("other", run_in=run_in)
    assert raw.empty()


async def test_two_instants_are_refused(app: Gangline) -> None:
    with pytest.raises(ConfigurationError, match="both were given"):
        await app.schedule_by_name("other", run_in=1, run_at=datetime(2030, 1, 1, tzinfo=UTC))


@contextmanager
def host_clock_off_by(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connections that are made in the block see a host clock that is wrong by `seconds`."""
    with monkeypatch.context() as patch:
        patch.setattr(connection, "ServerClock", partial(ServerClock, wall=lambda: time.time() + seconds))
        yield


@pytest.mark.parametrize("seconds", [120, -120])
async def test_the_server_s_clock_decides_when_a_job_is_due(
    uri: str, raw: Raw, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seconds: int
) -> None:
    """Case 23."""
    seen: list[str] = []
    with host_clock_off_by(seconds, monkeypatch):
        async with Gangline(named(uri)) as app:

            @app.event()
            async def note(text: str) -> None:
                seen.append(text)

            before = server_time(raw)
            later = await note.options(run_in="60s").schedule("later")
            await note.schedule("now")
            assert abs(raw.record(_id=later.id)["nextRunAt"] - before - timedelta(seconds=60)) < NEAR
            assert abs(raw.record(_id=later.id)["createdAt"] - before) < NEAR
            async with running(app):
                await eventually(lambda: seen)
                await note.options(priority=-1).schedule("last")
                await eventually(lambda: "last" in seen)
    assert seen == ["now", "last"]
    assert [record.name for record in caplog.records if "clock differs" in record.message] == ["gangline.clock"]
