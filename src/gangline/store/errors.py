"""What the store raises when the server could not be asked or refused: the driver's errors, under names of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymongo.errors import (
    AutoReconnect,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WTimeoutError,
)

StoreError = PyMongoError

_TRANSIENT = (AutoReconnect, ExecutionTimeout, ServerSelectionTimeoutError, WTimeoutError)
# What a server, or a router that asks a shard, answers while it cannot; of reads no label says so.
_TRANSIENT_CODES = frozenset({6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})
_AUTHENTICATION_FAILED = 18
_REFUSED_HINT = "does not correspond to an existing index"


def is_transient(error: StoreError) -> bool:
    """Whether the same call may succeed later: the server is away, busy, or changing its primary."""
    if isinstance(error, OperationFailure) and error.code in _TRANSIENT_CODES:
        return True
    return isinstance(error, _TRANSIENT) or error.timeout or error.has_error_label("RetryableWriteError")


def is_refused_hint(error: StoreError) -> bool:
    """Whether the server refused a hint: the index is missing, or not there for use. The code tells no more than 2."""
    details: Mapping[str, Any] = getattr(error, "details", None) or {}
    return any(_REFUSED_HINT in str(refusal.get("errmsg")) for refusal in (details, *details.get("writeErrors", ())))


def is_authentication_failure(error: StoreError) -> bool:
    """Whether the server refused the credentials."""
    return isinstance(error, OperationFailure) and error.code == _AUTHENTICATION_FAILED


def summary(error: StoreError) -> str:
    """Return what went wrong in one line. The driver appends its timeouts and its view of all servers."""
    text = str(error).split(", Timeout: ")[0].split(" (configured timeouts")[0].split(", full error: ")[0]
    return f"the server cannot be reached: {text}" if isinstance(error, AutoReconnect) else text
