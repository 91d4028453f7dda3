"""Makes a started `mongod` the primary of its replica set."""

import time
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from gangline.devserver.errors import DevServerError

NAME = "gangline"
"""The name of the replica set."""

_ALREADY_INITIALIZED = 23
_NOT_YET_INITIALIZED = 94
_STEP = 0.01  # seconds between two looks


def become_primary(address: str, *, timeout: float = 30.0) -> None:
    """Make the one server at `address` (`host:port`) the primary, `timeout` seconds at most.

    Raises DevServerError if it does not become primary in time or refuses.
    """
    try:
        with _connect(address, timeout) as client:
            _wait_for_primary(client, address, time.monotonic() + timeout)
    except PyMongoError as error:
        raise DevServerError(f"The server at {address} did not become primary: {error}") from error


def _connect(address: str, timeout: float) -> MongoClient[dict[str, Any]]:
    return MongoClient(address, directConnection=True, serverSelectionTimeoutMS=int(timeout * 1000))


def _wait_for_primary(client: MongoClient[dict[str, Any]], address: str, deadline: float) -> None:
    while not client.admin.command("hello").get("isWritablePrimary"):
        if time.monotonic() > deadline:
            raise DevServerError(f"The server at {address} did not become primary in time.")
        _configure(client, address)
        time.sleep(_STEP)


def _configure(client: MongoClient[dict[str, Any]], address: str) -> None:
    """Harmless to repeat, so it needs no knowledge of how far the server has come."""
    config = _configuration(client)
    if config is None:
        _initiate(client, address)
    elif config["members"][0]["host"] != address:
        _move(client, config, address)


def _configuration(client: MongoClient[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        config: dict[str, Any] = client.admin.command("replSetGetConfig")["config"]
    except OperationFailure as failure:
        if failure.code != _NOT_YET_INITIALIZED:
            raise
        return None
    return config


def _initiate(client: MongoClient[dict[str, Any]], address: str) -> None:
    try:
        client.admin.command("replSetInitiate", {"_id": NAME, "members": [{"_id": 0, "host": address}]})
    except OperationFailure as failure:
        if failure.code != _ALREADY_INITIALIZED:  # it has a configuration, and is still reading it
            raise


def _move(client: MongoClient[dict[str, Any]], config: dict[str, Any], address: str) -> None:
    """A kept folder remembers the port of its last run, and a server that does not find itself stays without a role."""
    members = [{**config["members"][0], "host": address}]
    moved = {**config, "members": members, "version": config["version"] + 1}
    client.admin.command("replSetReconfig", moved, force=True)
