"""What the server can do, asked once at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gangline.jobs.errors import ServerUnsuitable

OLDEST_WIRE_VERSION = 17  # MongoDB 6.0
SORTED_UPDATE_WIRE_VERSION = 25  # MongoDB 8.0


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What follows from the server's ``hello``."""

    wire_version: int
    replicated: bool
    server_time: datetime

    @property
    def sorted_update(self) -> bool:
        """Whether an ``update`` statement may carry a ``sort``."""
        return self.wire_version >= SORTED_UPDATE_WIRE_VERSION


def capabilities_of(hello: Mapping[str, Any]) -> Capabilities:
    """Return what ``hello`` tells.

    Raises:
        ServerUnsuitable: the server is older than MongoDB 6.0.
    """
    wire_version = int(hello.get("maxWireVersion", 0))
    if wire_version < OLDEST_WIRE_VERSION:
        raise ServerUnsuitable(
            f"the server speaks wire version {wire_version}; Gangline needs {OLDEST_WIRE_VERSION}, "
            "MongoDB 6.0 or later. Upgrade the server, or give the URI of another one."
        )
    routed = hello.get("msg") == "isdbgrid"
    return Capabilities(
        wire_version=wire_version,
        replicated=routed or "setName" in hello,
        server_time=hello["localTime"],
    )
