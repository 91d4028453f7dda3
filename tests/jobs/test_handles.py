"""What a decorated function becomes: whatever the handler is, it can be called as before and scheduled."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Annotated, Any

import bson
import pytest

from gangline import ConfigurationError, Context, Gangline, InvalidParams
from gangline.jobs.definition import define_recurrent
from gangline.jobs.params import ParamsSchema, from_stored, to_storable
from gangline.store.connection import CODEC


@pytest.fixture
def app() -> Gangline:
    """An app that is never connected."""
    return Gangline()


def add(one: int, other: int = 1) -> int:
    """Add two numbers."""
    return one + other


class Counter:
    """A handler whose attributes have the names of a job's own methods."""

    def __init__(self) -> None:
        self.options = {"verbose": True}
        self.definition = "of its own"
        self.__name__ = "counter"

    def __call__(self, ctx: Context, number: int) -> int:
        return number


def with_attributes(number: int) -> int:
    return number


with_attributes.call = "of its own"  # type: ignore[attr-defined]
with_attributes.schedule = None  # type: ignore[attr-defined]


def test_a_job_is_called_as_the_function_that_it_was(app: Gangline) -> None:
    job = app.event()(add)
    assert job(1, other=2) == 3
    assert (job.__doc__, job.__module__) == ("Add two numbers.", __name__)
    assert inspect.signature(job) == inspect.signature(add)
    assert repr(job) == "<event job 'add'>"


def test_a_recurrent_job_is_called_as_the_function_that_it_was(app: Gangline) -> None:
    def tick(step: int = 1) -> int:
        return step

    job = app.recurrent(every="1m")(tick)
    assert job(step=2) == 2
    assert repr(job) == "<recurrent job 'tick'>"


@pytest.mark.parametrize("handler", [Counter(), with_attributes], ids=["object", "function"])
def test_attributes_of_a_handler_do_not_hide_the_methods_of_its_job(app: Gangline, handler: Any) -> None:
    job = app.event()(handler)
    assert job.definition in app.jobs.values()
    assert job.call(number=1).params() == {"number": 1}
    assert job.options(priority=5).call(number=2).priority == 5


async def test_a_parameter_may_be_called_self(app: Gangline) -> None:
    def compare(self: int, other: int) -> bool:
        return self == other

    job = app.event()(compare)
    assert job.call(self=1, other=2).params() == {"self": 1, "other": 2}
    assert job.options(priority=5).call(self=1, other=2).params() == {"self": 1, "other": 2}
    assert job(self=1, other=1)
    for schedule in (job.schedule, job.options(priority=5).schedule):
        with pytest.raises(ConfigurationError, match="uri: none was given"):  # so it got as far as to the queue
            await schedule(self=1, other=2)


def test_options_are_checked_when_they_are_given_and_params_when_the_job_is_scheduled(app: Gangline) -> None:
    job = app.event(priority=7)(add)
    with pytest.raises(ConfigurationError, match=r"priorty: unknown option of scheduling. Did you mean 'priority'\?"):
        job.options(priorty=1)  # type: ignore[call-arg]
    call = job.call("x")  # type: ignore[arg-type]
    assert call.priority == 7
    with pytest.raises(InvalidParams, match="one: Input should be a valid integer"):
        call.params()


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Wrapper:
    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def run(ctx: Context, number: int) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [logged(run), Wrapper(run), Wrapper(logged(run)), functools.partial(Wrapper(run)), Wrapper(functools.partial(run))],
    ids=["function", "object", "both", "partial", "of a partial"],
)
def test_a_wrapped_handler_has_the_parameters_of_what_it_wraps(handler: Any) -> None:
    schema = ParamsSchema(handler, job="job")
    assert schema.takes_context
    assert schema.decode({"number": "1"}) == {"number": 1}


def keyword_only(*, ctx: Context, to: str) -> None: ...
def optional(ctx: Context | None, to: str) -> None: ...
def annotated(ctx: Annotated[Context, "mine"], to: str) -> None: ...


@pytest.mark.parametrize("handler", [keyword_only, optional, annotated])
def test_a_context_that_a_worker_could_not_pass_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"its Context 'ctx' is no ordinary parameter. Put it first"):
        ParamsSchema(handler, job="job")


def test_a_positional_only_context_is_one() -> None:
    def send(ctx: Context, /, to: str) -> None: ...

    assert ParamsSchema(send, job="job").takes_context


async def async_generator() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("handler", [generator, async_generator, functools.partial(generator)])
def test_a_handler_that_yields_is_refused_since_a_call_would_run_none_of_it(app: Gangline, handler: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"handler: .* yields"):
        app.event(name="job")(handler)


def test_a_next_run_that_is_a_coroutine_function_is_refused() -> None:
    async def tomorrow(after: datetime) -> datetime:
        return after

    with pytest.raises(ConfigurationError, match=r"next_run: .* is no plain function"):
        define_recurrent(lambda: None, {"name": "job", "next_run": tomorrow})  # type: ignore[typeddict-item]


def test_a_whole_number_of_64_bits_comes_back_plain_and_can_be_passed_on() -> None:
    def anything(value: Any) -> None: ...

    schema = ParamsSchema(anything, job="job")
    document = bson.encode(schema.encode_call(([2**40],), {}), codec_options=CODEC)
    back = schema.decode(from_stored(bson.decode(document, codec_options=CODEC)))
    assert type(back["value"][0]) is int
    assert schema.encode_call((), back) == {"value": [2**40]}


@pytest.mark.parametrize("key", [True, 1.5, None, (1, 2)], ids=repr)
def test_a_key_that_is_neither_text_nor_a_number_is_refused(key: Any) -> None:
    with pytest.raises(ValueError, match=rf"a {type(key).__name__} cannot be"):
        to_storable({key: 1})
