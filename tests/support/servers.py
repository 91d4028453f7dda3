"""The servers that the tests run against; each is a process of its own that ends with the test process."""

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest
from pymongo import MongoClient

from gangline.devserver import DevServerError, GuardedProcess, ServerEndedError, find_mongod, free_port

TEST_URI = "GANGLINE_TEST_URI"
"""The environment variable that points the whole suite at another server, such as a real MongoDB 8."""

_PORT_TRIES = 3


def missing(reason: str) -> NoReturn:
    """Skip the test on a laptop, fail it in CI, where every service must be present."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def secantusdb() -> Iterator[str]:
    """SecantusDB answers as MongoDB 8.2, so it takes the sorted updates of that version. Gives its URI.

    It is slow and GPL: good for behaviour, never for speed, and only ever run through its command line. It claims to
    be a replica set by itself.
    """
    program = shutil.which(Path(sys.executable).with_name("secantusd-py"))
    if program is None:
        missing("secantusd-py is not installed: pip install secantusdb")
    server, port = _start_secantusdb(program)
    try:
        yield f"mongodb://127.0.0.1:{port}/?replicaSet=secantus"
    finally:
        server.stop()


def _start_secantusdb(program: str) -> tuple[GuardedProcess, int]:
    """Another process may take the free port first, hence several tries."""
    for _ in range(_PORT_TRIES - 1):
        try:
            return _try_secantusdb(program, free_port())
        except ServerEndedError:
            continue
    return _try_secantusdb(program, free_port())


def _try_secantusdb(program: str, port: int) -> tuple[GuardedProcess, int]:
    folder = Path(tempfile.gettempdir()) / f"secantusdb-{secrets.token_hex(6)}"
    options = ["--host", "127.0.0.1", "--port", str(port), "--storage-path", str(folder / "data")]
    options += ["--cache-size", "256M", "--enable-test-commands"]
    server = GuardedProcess([program, *options], folder=folder, temporary=True)
    try:
        server.start("secantus listening on")
    except BaseException:
        server.stop()
        raise
    return server, port


@contextmanager
def standalone() -> Iterator[str]:
    """A MongoDB that is no replica set, so that it has no change streams and no transactions. Gives its URI."""
    try:
        binary = find_mongod()
    except DevServerError as error:
        missing(str(error))
    folder, port = Path(tempfile.gettempdir()) / f"standalone-{secrets.token_hex(6)}", free_port()
    options = ["--dbpath", str(folder), "--port", str(port), "--bind_ip", "127.0.0.1", "--nounixsocket"]
    server = GuardedProcess([str(binary), *options, "--wiredTigerCacheSizeGB", "0.25"], folder=folder, temporary=True)
    try:
        server.start("Waiting for connections")
        yield f"mongodb://127.0.0.1:{port}/shop"
    finally:
        server.stop()


@contextmanager
def fresh_database(server_uri: str) -> Iterator[str]:
    """The URI of a database that nobody else uses; dropped at the end."""
    name = f"gl_{secrets.token_hex(6)}"
    yield with_database(server_uri, name)
    client: MongoClient[dict[str, Any]]
    with MongoClient(server_uri) as client:
        client.drop_database(name)


def with_database(uri: str, name: str) -> str:
    """`uri`, naming the database `name`; who logs in still does so where `uri` said."""
    parts = urlsplit(uri)
    query = dict(parse_qsl(parts.query))
    if "@" in parts.netloc:
        query.setdefault("authSource", parts.path.strip("/") or "admin")
    return urlunsplit(parts._replace(path=f"/{name}", query=urlencode(query)))
