"""The embedded MongoDB server, for development and tests. It stands alone: no other room of Gangline is used here."""

from gangline.devserver.binary import find_mongod
from gangline.devserver.errors import DevServerError, ServerEndedError
from gangline.devserver.guarded import GuardedProcess
from gangline.devserver.server import DevServer, free_port

__all__ = ["DevServer", "DevServerError", "GuardedProcess", "ServerEndedError", "find_mongod", "free_port"]
