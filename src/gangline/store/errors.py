"""What the store raises when the server could not be asked or refused: the driver's errors, under names of our own."""

from __future__ import annotations

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
_AUTHENTICATION_FAILED = 18


def is_transient(error: StoreError) -> bool:
    """Whether the same call may succeed later: the server is away, busy, or changing its primary."""
    return isinstance(error, _TRANSIENT) or error.timeout or error.has_error_label("RetryableWriteError")


def is_authentication_failure(error: StoreError) -> bool:
    """Whether the server refused the credentials."""
    return isinstance(error, OperationFailure) and error.code == _AUTHENTICATION_FAILED
