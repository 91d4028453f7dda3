"""The quickstart of the README works as printed."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pymongo import MongoClient

from gangline.devserver import free_port

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "README.md").read_text().split("## Quickstart")[1].split("\n## ")[0]
PRINTED_PORT = "27018"
PATIENCE = 60


def blocks(language: str, port: int) -> list[str]:
    """The code blocks of the quickstart, on a port that is free."""
    found = re.findall(rf"```{language}\n(.*?)```", QUICKSTART, re.DOTALL)
    return [block.replace(PRINTED_PORT, str(port)) for block in found]


@contextmanager
def running(command: str, folder: Path, *, until: str) -> Iterator[subprocess.Popen[str]]:
    """`command`, once it has printed `until`; ended with Ctrl-C's signal."""
    process = subprocess.Popen(
        shlex.split(command), cwd=folder, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if until in line:
                break
        else:
            pytest.fail(f"{command} ended without {until!r}: {''.join(seen)}")
        yield process
    finally:
        process.send_signal(2)
        process.communicate(timeout=PATIENCE)


def environment() -> dict[str, str]:
    """The shell of a user who has activated the environment, with nothing of Gangline's set."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GANGLINE_")}
    return {**clean, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}


def run(command: str, folder: Path) -> str:
    """What `command` prints; it must succeed."""
    ended = subprocess.run(
        shlex.split(command), cwd=folder, env=environment(), text=True, capture_output=True, timeout=PATIENCE
    )
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def test_the_quickstart_works_as_printed(tmp_path: Path) -> None:
    port = free_port()
    install, work, look = (block.strip().splitlines() for block in blocks("sh", port))
    assert install[0] == "pip install '.[devserver]'"  # what `make` has done with the tests' own tools added
    [program] = blocks("python", port)
    (tmp_path / "shop.py").write_text(program)
    with running(install[1], tmp_path, until=str(port)):
        schedule, worker = work
        first, first_status, later, later_status = run(schedule, tmp_path).split()
        assert (first_status, later_status) == ("created", "created")
        with running(worker, tmp_path, until="welcome Ada <ada@example.org>") as process:
            pass
        assert process.returncode == 0
        assert history(port)[first] == {"greeting": "Welcome, Ada!"}
        stats, listing = (run(command, tmp_path) for command in look)
        assert "send_welcome_email" in stats
        assert "send_welcome_email" in listing
        assert later


def history(port: int) -> dict[str, object]:
    """The results by job id."""
    with MongoClient[dict[str, object]](f"mongodb://127.0.0.1:{port}/?directConnection=true") as client:
        return {str(entry["jobId"]): entry.get("result") for entry in client["shop"]["gangline.history"].find()}
