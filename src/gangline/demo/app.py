"""The jobs of the demo, as an app of yours could define them."""

import hashlib
from pathlib import Path
from typing import TypedDict

from gangline import Gangline

app = Gangline(partitions=16)


class Facts(TypedDict):
    """What a job finds out about its file."""

    sha256: str
    size: int


@app.event(max_tries=3)
def digest(path: Path) -> Facts:
    """Read one file. A plain function runs in a thread, so a worker reads several files at once."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
        return {"sha256": found.hexdigest(), "size": file.tell()}


@app.recurrent(every="1s", run_at_start=True, priority=200)
def tick() -> None:
    """Run once a second in one of the worker processes; its priority lets it overtake the files that wait."""
