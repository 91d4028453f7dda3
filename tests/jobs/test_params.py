"""A handler's parameters as a document: what survives storage, what is refused, and which handlers can have any."""

import dataclasses
import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import partial
from math import inf, nan
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import bson
import pytest
from bson import ObjectId
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PrivateAttr, SecretStr

from gangline import ConfigurationError, Context, InvalidParams
from gangline.jobs.params import ParamsSchema, from_stored, to_storable
from gangline.store.connection import CODEC
from jobs import deferred_annotations
from support.naming import plainly

SECRET = "s3cret"  # noqa: S105 - a value that no error may show
NO_DATETIME: Any = None


def stored(document: Any) -> Any:
    """``document`` as an execution reads it: through the driver's encoder and decoder."""
    data = bson.encode({"params": document}, codec_options=CODEC)
    return from_stored(bson.decode(data, codec_options=CODEC)["params"])


def round_trip(handler: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The keyword arguments that ``handler`` is run with after it was scheduled with these."""
    schema = ParamsSchema(handler, job="job")
    return schema.decode(stored(schema.encode_call(args, kwargs)))


def takes(annotation: Any) -> Callable[..., Any]:
    """A handler with one parameter, ``value``, of this type."""

    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = annotation
    return handler


def refusal(handler: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The text of the refusal of this call, which has no secret in it, nor has its traceback."""
    with pytest.raises(InvalidParams) as caught:
        round_trip(handler, *args, **kwargs)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Mood(StrEnum):
    GOOD = "good"


class Mixed(str, Enum):  # noqa: UP042 - as programs older than StrEnum have it; its str() is not its value
    ONE = "one"


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass
class Parcel:
    weight: Decimal
    sent: datetime | None = None
    anything: Any = None


class Customer(BaseModel):
    id: UUID
    born: date
    tags: set[str] = set()
    parent: "Customer | None" = None


class Loose(BaseModel):
    anything: Any = None
    score: float = 0.0


BERLIN = ZoneInfo("Europe/Berlin")
INDIA = timezone(timedelta(hours=5, minutes=30))
MOMENT = datetime.fromisoformat("2026-02-03T04:05:06.789012")
KEY = UUID("12345678-1234-5678-1234-567812345678")

ROUND_TRIPS: list[tuple[Any, Any]] = [
    (str, "a\N{SNOWMAN}\0b"),
    (str, ""),
    (int, 0),
    (int, 2**63 - 1),
    (int, -(2**63)),
    (float, 1.0),
    (float, -0.0),
    (float, inf),
    (float, -inf),
    (bool, True),
    (None, None),
    (bytes, b"\x00\xff"),
    (datetime, MOMENT.replace(tzinfo=INDIA)),
    (datetime, MOMENT.replace(tzinfo=UTC)),
    (datetime, MOMENT),
    (datetime, datetime.max.replace(tzinfo=UTC)),
    (datetime, datetime.min.replace(tzinfo=INDIA)),
    (date, date(2026, 2, 3)),
    (time, time(4, 5, 6, 789_012)),
    (time, time(4, 5, tzinfo=INDIA)),
    (timedelta, timedelta(days=-400, microseconds=7)),
    (timedelta, timedelta.max),
    (UUID, KEY),
    (Decimal, Decimal("0.10000000000000000000000000000000000000000001")),
    (Decimal, Decimal(2**70)),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Mood, Mood.GOOD),
    (Mixed, Mixed.ONE),
    (ObjectId, ObjectId("0123456789abcdef01234567")),
    (Customer, Customer(id=KEY, born=date(2000, 2, 29), tags={"a"}, parent=Customer(id=KEY, born=date.min))),
    (Parcel, Parcel(Decimal("1.50"), MOMENT)),
    (Point, Point(1, 2.0)),
    (int | None, None),
    (datetime | None, MOMENT),
    (int | str, "5"),
    (int | str, 5),
    (bool | int, 1),
    (datetime | int, MOMENT),
    (Customer | Parcel, Parcel(Decimal(1))),
    (list[Decimal], [Decimal("1.0"), Decimal("1.00")]),
    (tuple[int, ...], (1, 2)),
    (tuple[int, str, Colour], (1, "a", Colour.RED)),
    (set[UUID], {KEY}),
    (frozenset[int], frozenset({1, 2})),
    (deque[int], deque([1, 2])),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[UUID, list[date]], {KEY: [date.max]}),
    (dict[Level, int], {Level.HIGH: 1}),
    (dict[Mood, int], {Mood.GOOD: 1}),
    (dict[Mixed, int], {Mixed.ONE: 1}),
    (dict[str, Parcel], {"a": Parcel(Decimal(0))}),
    (list[Any], [1, 1.0, True, None, "a", b"a", {"b": []}]),
    (Any, {"a": [1, {"b": ObjectId("0123456789abcdef01234567")}]}),
]


def told(value: Any) -> str:
    return getattr(value, "__name__", str(value))


def shown(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime | time) else repr(value)


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=told)
def test_a_value_comes_back_as_it_was(annotation: Any, value: Any) -> None:
    """Case 36."""
    [back] = round_trip(takes(annotation), value).values()
    assert back == value
    assert type(back) is type(value)
    assert shown(back) == shown(value)  # 1, 1.0 and True are equal, as are Decimals of different precision


@pytest.mark.parametrize("annotation", [float, Any, list[Any], Loose, Parcel], ids=told)
def test_what_is_no_number_comes_back_so(annotation: Any) -> None:
    """Case 36: NaN, which does not equal itself."""
    not_a_number = float("nan")
    value = {list[Any]: [not_a_number], Loose: Loose(score=not_a_number), Parcel: Parcel(Decimal(1), None, nan)}
    [back] = round_trip(takes(annotation), value.get(annotation, not_a_number)).values()
    assert "nan" in repr(back)


@pytest.mark.parametrize(
    "instant",
    [
        datetime(2026, 7, 1, 12, 0, 0, 1, tzinfo=BERLIN),
        datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN),  # the first of the two half past two of that night
        datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN, fold=1),
        datetime(2025, 3, 30, 2, 30, tzinfo=BERLIN),  # skipped by the zone
    ],
    ids=str,
)
def test_a_datetime_in_a_zone_keeps_its_clock_and_its_offset(instant: datetime) -> None:
    """Case 36: the name of the zone is the documented loss."""
    for annotation, value in ((datetime, instant), (Parcel, Parcel(Decimal(1), instant))):
        [back] = round_trip(takes(annotation), value).values()
        back = back.sent if annotation is Parcel else back
        assert back.isoformat() == instant.isoformat()
        assert back.timestamp() == instant.timestamp()


def test_a_time_of_day_that_would_lose_its_zone_is_refused() -> None:
    """Case 36: unlike a datetime, it has no offset that could be kept."""
    assert "value, a time, would come back" in refusal(takes(time), time(4, 5, tzinfo=BERLIN))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, MOMENT),
        (Any, Decimal(1)),
        (Any, KEY),
        (Any, Level.HIGH),
        (Any, Mood.GOOD),
        (Any, (SECRET,)),
        (Any, {SECRET}),
        (Any, {1: SECRET}),
        (Any, deque([SECRET])),
        (Any, bytearray(SECRET.encode())),
        (Any, Loose(anything=SECRET)),
        (list[Any], [[(SECRET,)]]),
        (dict[str, Any], {"a": {"b": Level.HIGH}}),
        (object, Point(1, 2)),
        (datetime | str, MOMENT),  # as text it could have been either
        (Loose, Loose(anything=Level.HIGH)),
        (Loose, Loose(anything={"a": (SECRET,)})),
        (Parcel, Parcel(Decimal(1), anything=Level.HIGH)),
        (SecretStr, SecretStr(SECRET)),
    ],
    ids=told,
)
def test_a_loss_is_refused_without_the_values(annotation: Any, value: Any) -> None:
    """Case 36."""
    text = refusal(takes(annotation), value)
    assert f"value, a {type(value).__qualname__}, would come back from storage changed; give the parameter" in text


def test_what_a_model_keeps_beside_its_fields_is_a_loss() -> None:
    """Case 36."""

    class Hidden(BaseModel):
        _note: str = PrivateAttr("")
        dropped: str = Field(default="", exclude=True)

        def noting(self, text: str) -> "Hidden":
            self._note = text
            return self

    assert round_trip(takes(Hidden), Hidden()) == {"value": Hidden()}
    assert "would come back from storage changed" in refusal(takes(Hidden), Hidden().noting(SECRET))
    assert "would come back from storage changed" in refusal(takes(Hidden), Hidden(dropped=SECRET))


AWKWARD: list[dict[str, Any]] = [
    {"a.b": {"c.d": 1}, "": {"": ""}, ".": [{".": {}}]},
    {"$set": {"$inc": 1}, "$": ["$where", {"$$NOW": "$a.b"}], "a$b": "$$ROOT"},
    {"$ref": "#/$defs/address"},
    {"$ref": "x", "$id": "y"},
    {"$ref": "x", "$id": 0, "$db": "z", "more": {"$ref": "a", "$db": ""}},
    {"properties": {"to": {"$ref": "#/to", "$id": {"$ref": "b"}}}, "items": [{"$ref": ""}]},
    {"$id": "x", "$db": "y"},
    {"$ref": 5, "$id": None},
    {"$oid": "0123456789abcdef01234567", "$date": 0, "$numberLong": "1", "$code": "", "$scope": {}},
]


@pytest.mark.parametrize("document", AWKWARD, ids=lambda document: ",".join(document))
def test_keys_with_dots_and_dollars_come_back_unchanged(document: dict[str, Any]) -> None:
    """Case 34."""

    def anything(**document: Any) -> None: ...

    assert round_trip(takes(Any), document) == {"value": document}
    assert round_trip(takes(Any), [{"a": document}]) == {"value": [{"a": document}]}
    assert round_trip(anything, **document) == document
    assert stored(to_storable(document)) == document


@pytest.mark.parametrize("document", [{"$ref": "x", "$id": None}, {"$ref": "x", "$id": 1, "$db": None}], ids=str)
def test_a_null_that_the_driver_forgets_is_refused(document: dict[str, Any]) -> None:
    """Case 34: the decoder makes one and the same DBRef of a null and a missing ``$id``."""
    assert stored(document) != document
    assert "cannot keep a null $id or $db" in refusal(takes(Any), [document])


keys = st.sampled_from(["$ref", "$id", "$db", "$a", "a.b", "", "json"]) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


def forgotten(value: Any) -> bool:
    """Whether ``value`` holds a null that is refused, since the driver forgets it."""
    if isinstance(value, dict):
        own = isinstance(value.get("$ref"), str) and None in (value.get("$id", ""), value.get("$db", ""))
        return own or any(map(forgotten, value.values()))
    return isinstance(value, list) and any(map(forgotten, value))


def anything(value: Any) -> None: ...
def any_fields(**fields: Any) -> None: ...


on_a_slow_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ANYTHING = ParamsSchema(anything, job="job")
ANY_FIELDS = ParamsSchema(any_fields, job="job")


@on_a_slow_machine
@given(values)
def test_any_value_survives_or_is_refused_for_the_one_known_reason(value: Any) -> None:
    """Case 34."""
    if forgotten(value):
        with pytest.raises(InvalidParams, match="null"):
            ANYTHING.encode_call((value,), {})
    else:
        back = ANYTHING.decode(stored(ANYTHING.encode_call((value,), {})))
        assert repr(ordered(back)) == repr(ordered({"value": value}))  # 1, 1.0 and True differ, as do 0.0 and -0.0


@on_a_slow_machine
@given(st.dictionaries(keys, values, max_size=5).filter(lambda document: not forgotten(document)))
def test_any_document_survives_as_keyword_arguments(document: dict[str, Any]) -> None:
    """Case 34."""
    assert repr(ordered(ANY_FIELDS.decode(stored(ANY_FIELDS.encode_call((), document))))) == repr(ordered(document))
    assert repr(ordered(ANY_FIELDS.decode(stored(ANY_FIELDS.encode_document(document))))) == repr(ordered(document))


def ordered(value: Any) -> Any:
    """``value`` with its keys in one order: a sub-document with a ``$ref`` comes back in another."""
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value)}
    return list(map(ordered, value)) if isinstance(value, list) else value


def nested(levels: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = SECRET
    for _ in range(levels):
        value = wrap(value)
    return value


def cyclic_list() -> Any:
    value: list[Any] = [SECRET]
    value.append(value)
    return value


def cyclic_dict() -> Any:
    value: dict[str, Any] = {"a": SECRET}
    value["b"] = value
    return value


def cyclic_model() -> Any:
    value = Loose(anything=SECRET)
    value.anything = value
    return value


ENDLESS = [
    nested(92, lambda value: [value]),
    nested(5_000, lambda value: [value]),
    nested(5_000, lambda value: {"a": value}),
    nested(5_000, lambda value: (value,)),
    nested(5_000, lambda value: Loose.model_construct(anything=value)),
    nested(500, lambda value: deque([value])),
    cyclic_list(),
    cyclic_dict(),
    cyclic_model(),
]


@pytest.mark.parametrize("annotation", [Any, object], ids=told)
@pytest.mark.parametrize("value", ENDLESS, ids=range(len(ENDLESS)))
def test_what_has_no_end_or_is_too_deep_is_refused(annotation: Any, value: Any) -> None:
    assert refusal(takes(annotation), value)
    assert refusal(any_fields, value=value)
    with pytest.raises(ValueError, match=r"nested deeper|Circular|depth|cannot be stored"):
        to_storable(value)


def test_a_model_that_holds_itself_is_refused() -> None:
    endless = Customer(id=KEY, born=date.min)
    endless.parent = endless
    assert refusal(takes(Customer), endless)
    assert refusal(takes(Customer), nested(1_000, lambda parent: Customer.model_construct(parent=parent)))


def test_ninety_levels_come_back() -> None:
    value = nested(89, lambda value: [value])
    assert round_trip(takes(Any), value) == {"value": value}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (2**63, "a whole number needs more than 64 bits"),
        (-(2**63) - 1, "a whole number needs more than 64 bits"),
        ([{"a": 2**64}], "a whole number needs more than 64 bits"),
        (f"{SECRET}\ud800", "a text is no valid Unicode"),
        ({f"{SECRET}\udfff": 1}, "a text is no valid Unicode"),
        ({f"{SECRET}\0": 1}, "a key holds a NUL"),
        ({f"\0{SECRET}": {}}, "a key holds a NUL"),
        ({1: SECRET, "1": SECRET}, "two keys of a document are the same text"),
        (SimpleNamespace(a=SECRET), "a SimpleNamespace cannot be stored"),
        (lambda: SECRET, "a function cannot be stored"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_bson_cannot_hold_is_refused_without_the_values(value: Any, told: str) -> None:
    """Case 36."""
    assert told in refusal(takes(Any), value)
    assert told in refusal(any_fields, field=[value])
    with pytest.raises(ValueError, match=told) as caught:
        to_storable(value)
    assert SECRET not in str(caught.value)


def test_an_alias_is_the_name_in_the_document_and_the_parameter_that_of_the_call() -> None:
    def send(
        to_name: Annotated[str, Field(alias="toName")], max_size: Annotated[int, Field(alias="maxSize")] = 5
    ) -> None: ...

    schema = ParamsSchema(send, job="job")
    assert schema.encode_call(("a",), {"max_size": 6}) == {"toName": "a", "maxSize": 6}
    assert schema.encode_call((), {"to_name": "a"}) == {"toName": "a"}
    for document in ({"toName": "a", "maxSize": 6}, {"to_name": "a", "max_size": 6}):
        assert schema.decode(document) == {"to_name": "a", "max_size": 6}
        assert schema.encode_document(document) == {"toName": "a", "maxSize": 6}
    with pytest.raises(InvalidParams, match="unexpected keyword argument 'toName'"):
        schema.encode_call(("a",), {"toName": "a"})


def test_a_default_is_left_to_the_handler_of_the_day_it_runs() -> None:
    def send(to: str, copies: int = 1, *, urgent: bool = False) -> None: ...

    schema = ParamsSchema(send, job="job")
    assert schema.encode_call(("a",), {}) == {"to": "a"}
    assert schema.encode_call(("a", 2), {"urgent": True}) == {"to": "a", "copies": 2, "urgent": True}
    assert schema.decode({"to": "a"}) == {"to": "a"}
    with pytest.raises(InvalidParams, match="too many positional arguments"):
        schema.encode_call(("a", 2, True), {})


def test_a_wrong_default_is_never_stored_and_so_does_no_harm() -> None:
    def send(at: datetime = NO_DATETIME) -> None: ...

    assert round_trip(send) == {}


def test_a_missing_document_is_an_empty_one_and_fields_of_other_programs_are_left_out() -> None:
    def send(to: str = "") -> None: ...

    schema = ParamsSchema(send, job="job")
    assert schema.decode(None) == {}
    assert schema.decode({"to": "a", "fromAnotherVersion": 1}) == {"to": "a"}
    with pytest.raises(InvalidParams, match="holds a field that its handler lacks"):
        schema.encode_document({"to": "a", "fromAnotherVersion": 1})


def test_further_keyword_arguments_are_fields_of_their_own() -> None:
    def send(to: str, **fields: Any) -> None: ...

    schema = ParamsSchema(send, job="job")
    document = {"to": "a", "fields": 1, "self": 2, "args": 3, "a b": 4}
    assert schema.encode_call((), document) == document
    assert schema.encode_document(document) == document
    assert schema.decode(document) == document


def test_parameters_may_have_the_names_of_pydantic_s_own_methods() -> None:
    def send(
        json: int, copy: str, schema: list[int], model_config: int, model_fields: int, self: int, cls: int, job: int
    ) -> None: ...

    arguments = {"json": 1, "copy": "a", "schema": [2], "model_config": 3, "model_fields": 4} | dict.fromkeys(
        ("self", "cls", "job"), 5
    )
    assert round_trip(send, **arguments) == arguments


def positional_only(value: int, /) -> None: ...
def any_number(*values: int) -> None: ...
def default_is_a_field(value: int = Field(default=3)) -> None: ...
def unknown_name(value: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def second_context(value: int, ctx: Context) -> None: ...
def not_for_pydantic(value: Annotated[int, Field(discriminator="kind")]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (positional_only, "job: the parameter 'value' has no name in a document. Make it an ordinary parameter"),
        (any_number, "job: the parameter 'values' has no name in a document. Make it an ordinary parameter"),
        (default_is_a_field, r"job: the default of 'value' is a Field. Write Annotated\[type, Field"),
        (unknown_name, r"job: an annotation of its handler cannot be read \(name 'Missing' is not defined\)"),
        (second_context, "job: its Context 'ctx' is not the first parameter. Put it first"),
        (not_for_pydantic, r"job: its parameters cannot be checked"),
    ],
    ids=told,
)
def test_a_handler_whose_parameters_cannot_be_a_document_is_refused(handler: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        ParamsSchema(handler, job="job")


def with_context(ctx: Context, number: int, factor: int = 2) -> None: ...
def not_annotated(ctx, number):  # type: ignore[no-untyped-def]
    ...


class Callables:
    def method(self, ctx: Context, number: int) -> None: ...

    @classmethod
    def of_class(cls, ctx: Context, number: int) -> None: ...

    @staticmethod
    def static(ctx: Context, number: int) -> None: ...

    def __call__(self, ctx: Context, number: int) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        with_context,
        partial(with_context),
        partial(with_context, factor=3),
        partial(partial(Callables(), number=1)),
        partial(Callables().method),
        Callables().method,
        Callables.of_class,
        Callables.static,
        Callables(),
        deferred_annotations.with_context,
        deferred_annotations.Callable(),
        partial(deferred_annotations.with_context),
    ],
    ids=plainly,
)
def test_a_leading_context_is_no_parameter_and_the_others_are_checked(handler: Any) -> None:
    schema = ParamsSchema(handler, job="job")
    assert schema.takes_context
    assert schema.encode_call((), {"number": 1}) == {"number": 1}
    with pytest.raises(InvalidParams, match="number: Input should be a valid integer"):
        schema.decode({"number": "x"})


@pytest.mark.parametrize("handler", [anything, not_annotated, deferred_annotations.without_context, partial(anything)])
def test_without_an_annotation_there_is_no_context(handler: Any) -> None:
    assert not ParamsSchema(handler, job="job").takes_context


def test_a_parameter_that_is_not_annotated_takes_anything() -> None:
    assert round_trip(not_annotated, {"a": 1}, [2]) == {"ctx": {"a": 1}, "number": [2]}
