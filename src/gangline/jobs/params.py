"""A handler's own parameters are its params document: one field each, checked by Pydantic on both sides.

What the document holds: values that BSON keeps without loss stay native (text, whole numbers of 64 bits, floats, truth
values, null, bytes, ObjectId, documents, arrays); everything else is written in Pydantic's JSON form (a datetime with
its offset and microseconds, a Decimal, a UUID, an Enum's value, a model's fields) and read back through the handler's
annotation. A value that would come back as something else is refused when the job is scheduled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from functools import partial
from types import UnionType
from typing import Any, NotRequired, Required, Union, cast, get_args, get_origin, get_type_hints

from bson import Binary, Int64, ObjectId
from bson.dbref import DBRef
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict  # Pydantic refuses typing's own before Python 3.12

from gangline.jobs.context import Context
from gangline.jobs.errors import ConfigurationError, InvalidParams

Document = dict[str, Any]

_PLAIN = (str, bool, int, float, type(None))  # a tuple, since an annotation need not be hashable
_NATIVE = frozenset({str, bool, float, type(None), ObjectId})
_INT64 = range(-(2**63), 2**63)
_MAX_DEPTH = 90  # the server refuses documents nested deeper than 100; the record and history add levels of their own


class ParamsSchema:
    """The params of one handler, derived from its signature."""

    def __init__(self, handler: Callable[..., Any], *, job: str) -> None:
        """Read the signature of ``handler``.

        Raises:
            ConfigurationError: a parameter cannot be a field of a document, or an annotation cannot be read.
        """
        self._job = job
        self._signature = _signature(handler, job)
        hints = _hints(handler, job)
        names = list(self._signature.parameters)
        self.takes_context = bool(names) and _is_context(self._signature.parameters[names[0]], hints)
        own = [self._signature.parameters[name] for name in (names[1:] if self.takes_context else names)]
        self._own = self._signature.replace(parameters=own)
        self._extra = next((p.name for p in own if p.kind is inspect.Parameter.VAR_KEYWORD), None)
        self._names = frozenset(p.name for p in own if p.name != self._extra)
        self._required = frozenset(p.name for p in own if p.name in self._names and p.default is p.empty)
        self._plain = self._extra is None and all(_is_plain(hints.get(name)) for name in self._names)
        self._adapter = _adapter(job, own, hints)

    def encode_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Document:
        """Return the params document of a call with ``args`` and ``kwargs``.

        Raises:
            InvalidParams: the arguments do not fit the handler, or would not survive storage.
        """
        return self._encode(self._validated(self._bound(args, kwargs)))

    def encode_document(self, params: Any) -> Document:
        """Return ``params``, a document by field names or aliases, as it is stored.

        Raises:
            InvalidParams: it does not fit the handler, names a field that the handler lacks, or would not survive.
        """
        values = self._validated(params)
        if not self._extra and len(values) < len(params or {}):
            raise InvalidParams(f"job {self._job!r}: {sorted(set(params))} holds a field that its handler lacks")
        return self._encode(values)

    def decode(self, params: Any) -> dict[str, Any]:
        """Return the keyword arguments that a stored document means. A missing or null document is an empty one.

        Raises:
            InvalidParams: the document does not fit the handler.
        """
        return self._validated(params)

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not args and self._required <= kwargs.keys() <= self._names:
            return kwargs  # what `bind` would give, at a fifth of its cost
        try:
            given = self._own.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidParams(f"job {self._job!r}: {error}") from error
        extra = given.pop(self._extra, {}) if self._extra else {}
        return {**given, **extra}

    def _validated(self, params: Any) -> dict[str, Any]:
        try:
            return cast("dict[str, Any]", self._adapter.validate_python({} if params is None else params))
        except ValidationError as error:
            # Pydantic's own error shows the values, in every traceback that it is the cause of.
            raise InvalidParams(f"job {self._job!r}: {_explain(error)}") from None

    def _encode(self, values: dict[str, Any]) -> Document:
        if self._plain and all(type(value) in _PLAIN for value in values.values()):
            return self._encode_plain(values)
        try:
            document = to_storable(self._adapter.dump_python(values, by_alias=True, warnings=False))
        except (ValueError, TypeError) as error:
            raise InvalidParams(f"job {self._job!r}: {error}") from error
        self._refuse_loss(values, document)
        return cast("Document", document)

    def _encode_plain(self, values: dict[str, Any]) -> Document:
        # Stored as they are and read back through the same plain annotations, so that nothing can be lost.
        try:
            return {name: to_storable(value) for name, value in values.items()}
        except ValueError as error:
            raise InvalidParams(f"job {self._job!r}: {error}") from error

    def _refuse_loss(self, values: dict[str, Any], document: Document) -> None:
        back = self._validated(document)
        for name, value in values.items():
            if not _same(back.get(name), value):
                # No values in the text: params may hold secrets.
                raise InvalidParams(
                    f"job {self._job!r}: {name}, a {type(value).__qualname__}, would come back from storage changed; "
                    "give the parameter, and what it contains, the annotation of what it holds"
                )


def to_storable(value: Any, depth: int = 0) -> Any:
    """Return ``value`` in a form that BSON stores: native where nothing is lost, Pydantic's JSON form elsewhere.

    Raises:
        ValueError: a number beyond 64 bits, text that is no Unicode, a key with a NUL, two keys that are the same text,
            a null beside ``$ref``, nesting beyond 90 levels, or a type that has no JSON form.
    """
    kind = type(value)
    if kind is str:
        return _unicode(value)
    if kind in _NATIVE:
        return value
    if kind is int:
        return _int64(value)
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        return _storable_document(value, depth + 1)
    if isinstance(value, list | tuple | set | frozenset):
        return [to_storable(item, depth + 1) for item in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    return to_storable(_jsonable(value), depth + 1)


def _storable_document(value: dict[Any, Any], depth: int) -> Document:
    document = {_key(key): to_storable(item, depth) for key, item in value.items()}
    if len(document) < len(value):
        raise ValueError("two keys of a document are the same text")
    if isinstance(document.get("$ref"), str) and (document.get("$id", "") is None or document.get("$db", "") is None):
        # The decoder makes a DBRef of it, which no longer tells null from missing; see `from_stored`.
        raise ValueError("a document with a $ref cannot keep a null $id or $db")
    return document


def from_stored(value: Any) -> Any:
    """Return ``value`` as it was before storage where the driver's decoder changes it.

    The decoder turns every sub-document with a ``$ref`` key, a JSON schema for example, into a ``DBRef``, and a whole
    number of 64 bits into an ``Int64``.
    """
    if isinstance(value, dict):
        return {key: from_stored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_stored(item) for item in value]
    if isinstance(value, DBRef):
        return {key: from_stored(item) for key, item in value.as_doc().items() if (key, item) != ("$id", None)}
    if isinstance(value, Binary) and value.subtype == 0:
        return bytes(value)
    return int(value) if isinstance(value, Int64) else value


def _jsonable(value: Any) -> Any:
    try:
        form = to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeDecodeError) as error:
        raise ValueError(f"a {type(value).__qualname__} cannot be stored ({error})") from error
    if type(form) is type(value) and form == value:
        # An Enum or a subclass of a native type comes back plain; the same type again would never end.
        raise ValueError(f"a {type(value).__qualname__} cannot be stored")
    return form


def _key(key: Any) -> str:
    # Only a plain str is its own text: the str() of an Enum that is a text too is the name of its member.
    form = key if type(key) in (str, int) else _jsonable(key)
    if type(form) not in (str, int):
        raise ValueError(f"a {type(key).__qualname__} cannot be a key")
    text = str(form)
    if "\0" in text:
        raise ValueError("a key holds a NUL, which BSON cannot store")
    return _unicode(text)


def _unicode(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a text is no valid Unicode ({error.reason})") from error
    return text


def _int64(number: int) -> int:
    if number not in _INT64:
        raise ValueError("a whole number needs more than 64 bits; annotate it as Decimal or str")
    return number


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of one type at every level; NaN equals itself, and order in a set is free."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, datetime | time):
        return _same_time(one, other)
    if isinstance(one, BaseModel) or is_dataclass(one):
        return _same(_contents(one), _contents(other))
    return bool(one == other) or (one != one and other != other)


def _same_time(one: Any, other: Any) -> bool:
    # A time of day in a zone equals one without. And a datetime in an hour that its zone skips or has twice equals
    # nothing in another zone, not even the same instant with the same offset, which is what comes back.
    if (one.tzinfo is None) is not (other.tzinfo is None):
        return False
    same_clock = one.replace(tzinfo=None) == other.replace(tzinfo=None) and one.utcoffset() == other.utcoffset()
    return bool(one == other) or same_clock


def _contents(value: Any) -> dict[str, Any]:
    """The fields of a model or a dataclass; its own ``==`` takes ``1``, ``True`` and a member of an IntEnum for one."""
    if isinstance(value, BaseModel):
        own = {name: item for name, item in value.__dict__.items() if name in type(value).model_fields}
        return {**own, **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    return {field.name: getattr(value, field.name, None) for field in fields(value) if field.compare}


def _explain(error: ValidationError) -> str:
    """The message without the values: params may hold secrets, and this text reaches logs."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'params'}: {item['msg']}" for item in details)


def _is_plain(annotation: Any) -> bool:
    """Whether ``annotation`` is a plain type or a choice of them, which leaves a value of such a type as it is."""
    choices = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return all(choice in _PLAIN for choice in choices)


def _signature(handler: Callable[..., Any], job: str) -> inspect.Signature:
    try:
        return inspect.signature(handler)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(job, f"its handler has no readable signature ({error})", "Use a function") from error


def _hints(handler: Callable[..., Any], job: str) -> dict[str, Any]:
    function: Any = inspect.unwrap(handler)  # the one whose signature is read
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigurationError(
            job, f"an annotation of its handler cannot be read ({error})", "Import the name at module level"
        ) from error


def _is_context(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    positional = parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return positional and hints.get(parameter.name) is Context


def _adapter(job: str, parameters: list[inspect.Parameter], hints: dict[str, Any]) -> TypeAdapter[Any]:
    # A TypedDict and not a model: its keys may have any name, also those of a model's own methods.
    fields: dict[str, Any] = {}
    config = ConfigDict(arbitrary_types_allowed=True, validate_by_name=True, validate_by_alias=True, extra="ignore")
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            config["extra"] = "allow"
        else:
            fields[parameter.name] = _field(job, parameter, hints.get(parameter.name, Any))
    shape = cast("Any", TypedDict)(f"{job} params", fields)
    shape.__pydantic_config__ = config
    try:
        return TypeAdapter(shape)
    except Exception as error:  # Pydantic raises many kinds for annotations that it cannot read
        raise ConfigurationError(
            job, f"its parameters cannot be checked ({error})", "Use types Pydantic knows"
        ) from error


def _field(job: str, parameter: inspect.Parameter, annotation: Any) -> Any:
    if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
        raise ConfigurationError(
            job, f"the parameter {parameter.name!r} has no name in a document", "Make it an ordinary parameter"
        )
    if any(part is Context for part in (annotation, *get_args(annotation))):
        ordinary = annotation is Context and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        problem = "is not the first parameter" if ordinary else "is no ordinary parameter"
        raise ConfigurationError(
            job, f"its Context {parameter.name!r} {problem}", "Put it first, annotated with Context alone"
        )
    if isinstance(parameter.default, FieldInfo):
        raise ConfigurationError(
            job, f"the default of {parameter.name!r} is a Field", "Write Annotated[type, Field(…)] = default"
        )
    required = parameter.default is inspect.Parameter.empty
    marker: Any = Required if required else NotRequired
    return marker[annotation]
