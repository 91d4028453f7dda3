"""Records that cross between Gangline and a Node program on one queue, in both directions."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pymongo import MongoClient
from pymongo.collection import Collection

from gangline import Context, Gangline, InvalidParams, ScheduleStatus
from support.apps import Document, eventually, running
from support.queues import NODE_PREFIX, make_node_indexes, node_claim, node_record

PARTITIONS = 4


class Recipient(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True)

    email_address: str
    first_name: str | None = None


@pytest.fixture
def records(uri: str) -> Iterator[Collection[Document]]:
    """The records of the Node queue."""
    client: MongoClient[Document] = MongoClient(uri, tz_aware=True)
    with client:
        yield client.get_default_database()[f"{NODE_PREFIX}records"]


@pytest.fixture
async def app(uri: str) -> AsyncIterator[Gangline]:
    """An app that joins the Node queue."""
    async with Gangline(uri, prefix=NODE_PREFIX, partitions=PARTITIONS) as app:
        yield app


async def test_a_node_worker_claims_and_understands_what_gangline_scheduled(
    app: Gangline, records: Collection[Document]
) -> None:
    @app.event(name="sendWelcomeEmail")
    async def send_welcome_email(
        ctx: Context,
        recipient: Recipient,
        template_id: Annotated[int, Field(alias="templateId")] = 1,
        reply_to: Annotated[str | None, Field(alias="replyTo")] = None,
    ) -> None: ...

    make_node_indexes(records)
    async with running(app):  # makes Gangline's indexes, none of which may confuse the hint
        await eventually(lambda: "gangline_due" in records.index_information())
    scheduled = await send_welcome_email.options(unique="welcome:1").schedule(
        recipient=Recipient(email_address="a@x", first_name="Ada"), template_id=7
    )
    claimed = node_claim(records, ["sendWelcomeEmail", "other"], PARTITIONS)
    assert claimed is not None
    assert claimed["_id"] == scheduled.id
    assert claimed["params"] == {"recipient": {"emailAddress": "a@x", "firstName": "Ada"}, "templateId": 7}
    assert (claimed["type"], claimed["tries"], claimed["uniqueIdentifier"]) == ("event", 1, "welcome:1")
    assert node_claim(records, ["sendWelcomeEmail"], PARTITIONS) is None


async def test_gangline_runs_what_a_node_program_scheduled(app: Gangline, records: Collection[Document]) -> None:
    seen: list[Any] = []

    @app.event(name="sendWelcomeEmail")
    async def send_welcome_email(
        ctx: Context, recipient: Recipient, template_id: Annotated[int, Field(alias="templateId")] = 1
    ) -> None:
        seen.append((ctx.id, recipient.email_address, template_id))

    @app.event(name="withoutParams")
    async def without_params() -> None:
        seen.append("without params")

    record = node_record("sendWelcomeEmail", {"recipient": {"emailAddress": "a@x"}, "templateId": 3}, partition=3)
    no_params = [node_record("withoutParams", None), node_record("withoutParams")]
    del no_params[1]["params"]
    records.insert_many([record, *no_params])
    async with running(app):
        await eventually(lambda: records.find_one({}) is None)
    assert sorted(map(str, seen)) == sorted(map(str, [(record["_id"], "a@x", 3), *["without params"] * 2]))


async def test_both_names_of_a_field_are_taken_by_name_and_the_alias_is_stored(
    app: Gangline, records: Collection[Document]
) -> None:
    @app.event(name="resizeImage")
    async def resize_image(max_width: Annotated[int, Field(alias="maxWidth")]) -> None: ...

    for params in ({"maxWidth": 5}, {"max_width": 5}):
        await app.schedule_by_name("resizeImage", params)
    await resize_image.schedule(5)
    await resize_image.schedule(max_width=5)
    assert [record["params"] for record in records.find()] == [{"maxWidth": 5}] * 4
    with pytest.raises(InvalidParams):
        await app.schedule_by_name("resizeImage", {"maxwidth": 5})


async def test_both_sides_share_one_identifier(app: Gangline, records: Collection[Document]) -> None:
    first = await app.schedule_by_name("resizeImage", unique="image:1")
    with pytest.raises(Exception, match="E11000"):
        records.insert_one(node_record("other", uniqueIdentifier="image:1"))
    claimed = claimed_by_node(records)
    second = await app.schedule_by_name("resizeImage", {"n": 2}, unique="image:1", on_conflict="replace")
    assert (second.status, second.id) == (ScheduleStatus.EXISTING, first.id)
    assert records.find_one({}) == claimed


def claimed_by_node(records: Collection[Document]) -> Document | None:
    make_node_indexes(records)
    return node_claim(records, ["resizeImage"], PARTITIONS)


async def test_a_job_that_this_program_does_not_define_waits_untouched(
    app: Gangline, records: Collection[Document]
) -> None:
    """Case 37."""
    done = asyncio.Event()

    @app.event()
    async def own() -> None:
        done.set()

    foreign = await app.schedule_by_name("resizeImage", {"path": "a.png"}, priority=1_000)
    before = records.find_one({"_id": foreign.id})
    async with running(app):
        await own.options(priority=-1).schedule()
        await asyncio.wait_for(done.wait(), 8)
        await eventually(lambda: records.count_documents({}) == 1)
    assert records.find_one({}) == before
