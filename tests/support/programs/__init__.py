"""Small programs that tests run as processes of their own, to kill them or to let them block."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import Unpack

from gangline.jobs.settings import WorkerOptions

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
"""In which `python -m support.programs...` works."""


@contextmanager
def worker_process(uri: str, log: Path, **options: Unpack[WorkerOptions]) -> Iterator["subprocess.Popen[bytes]"]:
    """`support.programs.worker` on `uri`, which logs to `log`; killed when the block is left."""
    command = [sys.executable, "-m", "support.programs.worker", uri, json.dumps(options)]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, env=ENVIRONMENT, stdout=out, stderr=out) as process,
    ):
        try:
            yield process
        finally:
            process.kill()
