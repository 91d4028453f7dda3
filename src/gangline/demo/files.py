"""The files of a directory that the demo can read."""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

INSTALLED = ("site-packages", "dist-packages")
"""Directories of the standard library's that are not part of it."""


Stamp = tuple[int, int, int]
"""What changes when a file does: its inode, its size, and the time of its last change."""


@dataclass(frozen=True)
class Files:
    """Regular files that can be read, and how many others there were: links, devices, forbidden ones."""

    stamps: Mapping[Path, Stamp]
    skipped: int

    def changed(self, path: Path) -> bool:
        """Whether ``path`` is another file than it was, or gone."""
        return _stamp(path) != self.stamps[path]


def standard_library() -> Path:
    """Return the directory of the standard library of the Python that runs this."""
    return Path(sysconfig.get_path("stdlib"))


def find_files(directory: Path, *, without: Collection[str] = ()) -> Files:
    """Return the files below ``directory``, but not those below directories with a name of ``without``."""
    stamps = {path: _stamp(path) for path in sorted(_walk(directory, without))}
    found = {path: stamp for path, stamp in stamps.items() if stamp is not None}
    return Files(found, skipped=len(stamps) - len(found))


def _walk(directory: Path, without: Collection[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(directory.absolute()):
        folders[:] = [name for name in folders if name not in without]
        for name in names:
            yield Path(folder, name)


def _stamp(path: Path) -> Stamp | None:
    """``None`` for what is no regular file, cannot be read, or has a name that is no text and so no parameter."""
    try:
        str(path).encode()
        status = path.lstat()
    except (OSError, UnicodeEncodeError):
        return None
    if not stat.S_ISREG(status.st_mode) or not os.access(path, os.R_OK):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
