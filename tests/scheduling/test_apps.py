"""One app, or several, over its life: configured, used, closed, used again, and from which event loop."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pymongo import MongoClient

from gangline import ConfigurationError, Gangline, Scheduled
from gangline.handles import EventJob
from support.apps import Document, Raw, eventually, running
from support.queues import NODE_PREFIX
from support.servers import fresh_database

PASSWORD = "s3cret"  # noqa: S105


def collections(uri: str) -> set[str]:
    client: MongoClient[Document]
    with MongoClient(uri) as client:
        return set(client.get_default_database().list_collection_names())


@pytest.fixture
def other_uri(mongo_uri: str) -> Iterator[str]:
    """A second fresh database."""
    with fresh_database(mongo_uri) as database:
        yield database


async def test_apps_in_one_process_have_queues_of_their_own(uri: str, other_uri: str) -> None:
    seen: list[str] = []

    def note_in(app: Gangline, name: str) -> EventJob[[], [], Any]:
        @app.event()
        async def note() -> None:
            seen.append(name)

        return note

    def noted(name: str) -> Callable[[], bool]:
        return lambda: name in seen

    async with Gangline(uri) as one, Gangline(uri, prefix=NODE_PREFIX) as two, Gangline(other_uri) as three:
        apps = {"one": one, "two": two, "three": three}
        for name, app in apps.items():
            assert (await note_in(app, name).options(unique="x").schedule()).created
        assert collections(uri) == {"gangline.records", f"{NODE_PREFIX}records"}
        assert collections(other_uri) == {"gangline.records"}
        for name in ("two", "three", "one"):
            async with running(apps[name]):
                await eventually(noted(name))
    assert seen == ["two", "three", "one"]


@pytest.mark.parametrize("prefix", [None, 5, "a$", "a\0", ".a", "a..", "system."], ids=repr)
def test_a_prefix_that_no_collection_can_have_is_refused(prefix: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"prefix: .* cannot begin a collection's name"):
        Gangline("mongodb://localhost/shop", prefix=prefix)


async def test_an_empty_prefix_is_one(uri: str) -> None:
    async with Gangline(uri, prefix="") as app:
        await app.schedule_by_name("other")
    assert collections(uri) == {"records"}


async def test_a_closed_app_can_be_used_again(uri: str, raw: Raw) -> None:
    app = Gangline(uri)
    for expected in (1, 2):
        await app.schedule_by_name("other")
        await app.close()
        assert raw.records.count_documents({}) == expected
    await app.close()
    async with app as same:
        assert same is app
        await app.schedule_by_name("other", unique="x")
    assert raw.records.count_documents({}) == 3


async def test_an_app_gets_its_uri_later(uri: str, raw: Raw) -> None:
    app = Gangline()

    @app.event()
    async def note() -> None: ...

    for use in (note.schedule, partial(app.schedule_by_name, "note")):
        with pytest.raises(ConfigurationError, match=r"uri: none was given\. .*gangline dev"):
            await use()
    app.configure(uri=uri)
    await app.schedule_by_name("other")
    with pytest.raises(ConfigurationError, match="uri: a connection is open already"):
        app.configure(uri="mongodb://elsewhere/shop")
    await app.close()
    assert raw.record()["jobName"] == "other"
    app.configure(uri="mongodb://elsewhere/shop")


@pytest.mark.parametrize(
    "wrong",
    [
        f"mongodb://user:{PASSWORD}/x@host:27017/db",
        f"mongodb://user:x@{PASSWORD}@host/db",
        f"mongodb://user:{PASSWORD}@host:99999/db",
        f"mongodb://user:{PASSWORD}@host/db?w=-5",
        f"mongodb://user:{PASSWORD}%@host/",
        f"mongodb://user:{PASSWORD}@host/?unknownOption=1",
        f"mongodb://user:{PASSWORD}@/db",
        f"https://user:{PASSWORD}@host/db",
        f"user:{PASSWORD}@host",
    ],
)
def test_a_wrong_uri_is_refused_without_its_password(wrong: str) -> None:
    app = Gangline()
    for use in (lambda: Gangline(wrong), lambda: app.configure(uri=wrong)):
        with pytest.raises(ConfigurationError, match=r"uri: it cannot be read \(.*Give one such as") as caught:
            use()
        assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("wrong", ["", 5, b"mongodb://host", ["mongodb://host"]], ids=repr)
def test_what_is_no_uri_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="uri: it cannot be read"):
        Gangline(wrong)


def test_what_an_app_shows_of_itself_holds_no_password() -> None:
    app = Gangline(f"mongodb://user:{PASSWORD}@host/db")
    assert PASSWORD not in repr(app) + repr(vars(app))


async def test_credentials_that_are_refused_are_not_shown(mongo_uri: str) -> None:
    address = mongo_uri.partition("://")[2]
    async with Gangline(f"mongodb://user:{PASSWORD}@{address}") as app:
        with pytest.raises(Exception, match="Authentication failed") as caught:
            await app.schedule_by_name("other", unique="x")
    assert PASSWORD not in str(caught.value)


# Event loops


async def schedule(app: Gangline) -> Scheduled:
    return await app.schedule_by_name("other")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_app_serves_one_event_loop_after_another(uri: str, raw: Raw) -> None:
    """A script calls `asyncio.run` as often as it likes; what the first loop left open it can no longer close."""
    app = Gangline(uri)
    ids = {asyncio.run(schedule(app)).id for _ in range(3)}
    asyncio.run(app.close())
    assert {record["_id"] for record in raw.records.find()} == ids
    assert len(ids) == 3
    gc.collect()


def test_an_app_that_is_closed_in_each_loop_leaves_nothing_open(uri: str, raw: Raw) -> None:
    app = Gangline(uri)

    async def main() -> None:
        async with app:
            await schedule(app)

    for _ in range(2):
        asyncio.run(main())
    assert raw.records.count_documents({}) == 2


async def test_an_app_in_use_in_another_loop_says_so(app: Gangline, raw: Raw) -> None:
    await schedule(app)
    caught: list[ConfigurationError] = []

    def elsewhere() -> None:
        with pytest.raises(ConfigurationError) as error:
            asyncio.run(schedule(app))
        caught.append(error.value)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert "in use in another event loop" in str(caught[0])
    await schedule(app)
    assert raw.records.count_documents({}) == 2
