"""The watch over child processes: a test that leaves one behind has not cleaned up."""

import time

import psutil

_PYTHON_KEEPS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def children() -> set[psutil.Process]:
    """The living processes below this one, except those that `multiprocessing` keeps for itself."""
    return {child for child in psutil.Process().children(recursive=True) if _counts(child)}


def left_behind(before: set[psutil.Process], *, patience: float = 5.0) -> list[str]:
    """What is still below this process after `patience` seconds and was not there `before`; killed, and described."""
    deadline = time.monotonic() + patience
    while (rest := children() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [_end(child) for child in rest]


def _counts(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE and not any(name in _line(child) for name in _PYTHON_KEEPS)
    except psutil.NoSuchProcess:
        return False


def _end(child: psutil.Process) -> str:
    try:
        line = _line(child)
        child.kill()
    except psutil.NoSuchProcess:
        line = "ended just now"
    return f"{child.pid}: {line}"


def _line(child: psutil.Process) -> str:
    return " ".join(child.cmdline())
