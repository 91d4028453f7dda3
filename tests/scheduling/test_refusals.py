"""What is refused when a job is scheduled, and what the refusal tells: never the values, which may be secrets."""

import asyncio
import traceback
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import bson
import pytest
from pydantic import AfterValidator, BaseModel

from gangline import ConfigurationError, Gangline, InvalidParams, RecordTooLarge
from gangline.jobs.scheduling import JobCall
from support.apps import Raw, running, soon
from support.naming import plainly

SECRET = "s3cret"  # noqa: S105


class Account(BaseModel):
    password: int


@pytest.mark.parametrize("name", ["", "   ", None, 5, b"job", "a\0b", ["job"]], ids=repr)
async def test_a_name_that_is_none_is_refused_at_the_call(app: Gangline, raw: Raw, name: Any) -> None:
    """Case 33."""
    with pytest.raises(ConfigurationError, match=r"name: .* cannot name a job"):
        await app.schedule_by_name(name)
    with pytest.raises(ConfigurationError, match=r"name: .* cannot name a job"):
        app.event(name=name)(asyncio.sleep)
    assert raw.empty()


async def test_params_of_17_mb_are_refused_with_their_size(app: Gangline, raw: Raw) -> None:
    """Case 35."""

    @app.event()
    async def store(payload: str) -> None: ...

    for attempt in (
        store.schedule("x" * 17_000_000),
        app.schedule_by_name("other", {"payload": "x" * 17_000_000}),
        app.schedule_by_name("other", ["x" * 1_000_000] * 17),
    ):
        with pytest.raises(RecordTooLarge, match=r"job '\w+': the record has 17,\d{3},\d{3} bytes, 16,646,144 can be"):
            await attempt
    assert raw.empty()


async def test_the_largest_record_that_is_accepted_can_fail_and_is_kept(app: Gangline, raw: Raw) -> None:
    """Case 35: a claim adds its lease and a failure its trace, and the server's limit holds for those too."""
    failed = asyncio.Event()

    @app.event(max_tries=1)
    async def fail(payload: str) -> None:
        failed.set()
        raise ValueError("\N{SNOWMAN}" * 30_000)

    empty = await fail.schedule("")
    overhead = len(bson.encode(raw.record()))
    raw.records.delete_one({"_id": empty.id})
    largest = 16_646_144 - overhead
    with pytest.raises(RecordTooLarge):
        await fail.schedule("x" * (largest + 1))
    async with running(app):
        await fail.schedule("x" * largest)
        await soon(failed.wait())
    assert raw.record()["status"] == "maxTriesReached"


def refused(app: Gangline, function: Any, *args: Any) -> InvalidParams:
    with pytest.raises(InvalidParams) as caught:
        app.event()(function).call(*args).params()
    return caught.value


def takes_int(value: int) -> None: ...
def takes_literal(value: Literal["a", "b"]) -> None: ...
def takes_date(value: datetime) -> None: ...
def takes_decimal(value: Decimal) -> None: ...
def takes_model(value: Account) -> None: ...
def takes_any(value: Any) -> None: ...
def takes_list(value: list[int]) -> None: ...
def takes_changing(value: Annotated[str, AfterValidator(lambda text: text + "!")]) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "told"),
    [
        (takes_int, (SECRET,), "value: Input should be a valid integer"),
        (takes_literal, (SECRET,), "value: Input should be 'a' or 'b'"),
        (takes_date, (SECRET,), "value: Input should be a valid datetime"),
        (takes_decimal, (SECRET,), "value: Input should be a valid decimal"),
        (takes_model, ({"password": SECRET},), "value.password: Input should be a valid integer"),
        (takes_list, ([1, SECRET],), "value.1: Input should be a valid integer"),
        (takes_changing, (SECRET,), "value, a str, would come back from storage changed"),
        (takes_any, ({1, 2, SECRET},), "value, a set, would come back from storage changed"),
        (takes_any, (2**70 + 3,), "a whole number needs more than 64 bits"),
        (takes_any, (f"{SECRET}\ud800",), "a text is no valid Unicode"),
        (takes_any, ({f"{SECRET}\0": 1},), "a key holds a NUL"),
        (takes_any, (object(),), "a object cannot be stored"),
        (takes_int, (), "missing a required argument: 'value'"),
        (takes_int, (1, SECRET), "too many positional arguments"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_refusal_tells_the_place_and_never_the_value(
    app: Gangline, function: Any, args: tuple[Any, ...], told: str
) -> None:
    """Case 38: neither in its text nor in a traceback of it."""
    error = refused(app, function, *args)
    assert str(error).startswith(f"job '{function.__name__}': ")
    assert told in str(error)
    text = "".join(traceback.format_exception(error))
    assert SECRET not in text
    assert str(2**70 + 3) not in text


@pytest.mark.parametrize("arguments", [{"value": 1, "other": SECRET}, {"other": SECRET}, {"values": 1}], ids=str)
async def test_an_argument_that_the_handler_lacks_is_refused(
    app: Gangline, raw: Raw, arguments: dict[str, Any]
) -> None:
    job: Any = app.event()(takes_int)
    with pytest.raises(InvalidParams, match=r"an unexpected keyword argument|missing a required argument") as caught:
        await job.schedule(**arguments)
    assert SECRET not in str(caught.value)
    assert raw.empty()


async def test_what_bson_cannot_hold_is_refused_without_its_value(app: Gangline, raw: Raw) -> None:
    class Secretive:
        def __repr__(self) -> str:
            return SECRET

    [outcome] = await app.schedule_many([JobCall(name="other", params=lambda: {"a": Secretive()})])
    assert isinstance(outcome.error, InvalidParams)
    assert SECRET not in str(outcome.error)
    assert raw.empty()


async def test_params_of_a_job_of_this_program_are_checked_by_name_too(app: Gangline, raw: Raw) -> None:
    @app.event()
    async def note(number: int) -> None: ...

    for params, told in (
        ({"number": SECRET}, "number: Input should be a valid integer"),
        ({}, "number: Field required"),
        ({"number": 1, "extra": SECRET}, r"\['extra', 'number'\] holds a field that its handler lacks"),
        ([SECRET], "params: Input should be a valid dictionary"),
        (SECRET, "params: Input should be a valid dictionary"),
    ):
        with pytest.raises(InvalidParams, match=told) as caught:
            await app.schedule_by_name("note", params)
        assert SECRET not in str(caught.value)
    assert raw.empty()


@pytest.mark.parametrize("params", [{"a": object()}, 2**64, {"a": {1: "\ud800"}}, {"\0": 1}], ids=plainly)
async def test_params_that_cannot_be_stored_are_refused_for_jobs_of_others_too(
    app: Gangline, raw: Raw, params: Any
) -> None:
    with pytest.raises(InvalidParams, match="job 'other'"):
        await app.schedule_by_name("other", params)
    assert raw.empty()


@pytest.mark.parametrize("levels", [95, 300, 2_000])
async def test_params_nested_too_deeply_are_refused(app: Gangline, raw: Raw, levels: int) -> None:
    params: Any = 1
    for _ in range(levels):
        params = [params]
    with pytest.raises(InvalidParams, match="nested deeper than 90 levels"):
        await app.schedule_by_name("other", params)
    assert raw.empty()
