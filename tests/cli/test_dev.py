"""`gangline dev` as a process."""

import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from pymongo import MongoClient

from gangline.devserver import DevServerError, find_mongod, free_port
from support.cli import gangline, in_process
from support.servers import missing


@pytest.fixture(autouse=True)
def _mongod_is_there() -> None:
    try:
        find_mongod()
    except DevServerError as error:
        missing(str(error))


def test_a_program_learns_the_address_and_ctrl_c_ends_the_server() -> None:
    with gangline("dev", "--json") as command:
        told = json.loads(command.says("uri"))
        assert told.keys() == {"uri", "pid", "path"}
        client: MongoClient[dict[str, Any]]
        with MongoClient(told["uri"]) as client:
            assert client.admin.command("hello")["isWritablePrimary"]
            assert client.get_default_database().name == "gangline"
        command.send(signal.SIGINT)
        assert command.ends() == 0
    assert not psutil.pid_exists(told["pid"])
    assert not Path(told["path"]).exists()


def test_a_person_is_told_how_to_use_it_and_what_it_is_not_for(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "data"
    with gangline("dev", "--port", str(port), "--path", str(folder)) as command:
        command.says("Ctrl-C stops it.")
        uri = f"mongodb://127.0.0.1:{port}/gangline?replicaSet=gangline"
        assert f"export GANGLINE_URI={shlex.quote(uri)}\n" in command.output
        assert "for development and tests only" in command.output
        command.send(signal.SIGTERM)
        assert command.ends() == 0
    assert folder.is_dir()


def test_a_server_that_ends_by_itself_ends_the_command() -> None:
    with gangline("dev", "--json") as command:
        os.kill(json.loads(command.says("uri"))["pid"], signal.SIGKILL)
        assert command.ends() == 1
        assert "Error: the server has ended by itself" in command.output


def test_a_port_that_is_taken_is_told(mongod: Any) -> None:
    with gangline("dev", "--port", str(mongod.port)) as command:
        assert command.ends() == 1
        assert command.output == f"Error: Port {mongod.port} is taken: give another one, or none.\n"


def test_a_missing_program_is_told_with_the_remedy() -> None:
    result = in_process("dev", env={"GANGLINE_MONGOD": "/nowhere/mongod"})
    assert result.exit_code == 1
    assert "'/nowhere/mongod' does not exist" in result.stderr
    assert "Remedy:" in result.stderr
