"""The embedded MongoDB: a one-node replica set for development and tests, never for production."""

import secrets
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from gangline.devserver import replica_set
from gangline.devserver.binary import find_mongod
from gangline.devserver.errors import DevServerError, ServerEndedError
from gangline.devserver.guarded import GuardedProcess

_HOST = "127.0.0.1"
_READY = "Waiting for connections"
_PORT_TAKEN = 48  # the exit code of a mongod that cannot listen
_PORT_TRIES = 5
_CACHE_GB = 0.5
_OPLOG_MB = 512  # the default is 5 % of the disk


class DevServer:
    """A MongoDB server of this process's own, on a free loopback port.

    It runs as a one-node replica set, so transactions, change streams and majority writes work. It is gone when this
    process is gone, SIGKILL included, and a Ctrl-C in the terminal does not reach it: the owner stops it last.

        with DevServer() as server:
            client = MongoClient(server.uri)

    A forked child of the owner must leave the object alone; use it from one thread at a time.
    """

    def __init__(
        self,
        *,
        path: Path | str | None = None,
        port: int | None = None,
        binary: Path | str | None = None,
        fail_points: bool = False,
    ) -> None:
        """Describe the server; nothing runs before `start`.

        `path` keeps the data in that folder; without it the folder is temporary and deleted at the end. `port` is the
        one to listen on; without it a free one is found. `binary` is the `mongod` to run, see `find_mongod`.
        `fail_points` lets tests inject faults with `configureFailPoint`.
        """
        self._wanted_port = port
        self._kept = None if path is None else Path(path).resolve()
        self._binary = binary
        self._fail_points = fail_points
        self._port: int | None = None
        self._process: GuardedProcess | None = None

    @property
    def port(self) -> int:
        """The port; the same after `kill` and `start`. Raises DevServerError unless started."""
        if self._port is None:
            raise DevServerError("The embedded server is not started: call start() first.")
        return self._port

    @property
    def address(self) -> str:
        """`host:port`. Raises DevServerError unless started."""
        return f"{_HOST}:{self.port}"

    @property
    def uri(self) -> str:
        """The connection string, without a database. Raises DevServerError unless started."""
        return self.uri_for("")

    @property
    def running(self) -> bool:
        """Whether `mongod` is alive; a paused one is."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int | None:
        """The process id of `mongod`; None while none was started, after `kill`, and after `stop`."""
        return self._process.pid if self._process else None

    @property
    def guard_pid(self) -> int:
        """The process id of the watchdog that ends `mongod`. Raises DevServerError unless started."""
        return self._started().guard_pid

    @property
    def path(self) -> Path:
        """The folder with the data and the log. Raises DevServerError unless started."""
        return self._started().folder

    def uri_for(self, database: str) -> str:
        """The connection string that names `database`. Raises DevServerError unless started."""
        return f"mongodb://{self.address}/{database}?replicaSet={replica_set.NAME}"

    def start(self) -> Self:
        """Start, or start again after `kill`, and return once the server is primary; no effect on one that runs.

        Raises DevServerError if there is no server program or it does not come up; then nothing is left running.
        """
        try:
            if self._process is None:
                self._launch()
            elif not self._process.running:
                self._process.start(_READY)
            replica_set.become_primary(self.address)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and delete a temporary folder; no effect on one that is stopped."""
        process, self._process, self._port = self._process, None, None
        if process:
            process.stop()

    def kill(self) -> None:
        """SIGKILL `mongod` and wait until it is gone, as in an outage; the port and the data stay for `start`."""
        self._started().kill()

    def pause(self) -> None:
        """SIGSTOP `mongod`: connections stay open and nothing is answered until `resume`."""
        self._started().pause()

    def resume(self) -> None:
        """SIGCONT `mongod`."""
        self._started().resume()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _started(self) -> GuardedProcess:
        if self._process is None:
            raise DevServerError("The embedded server is not started: call start() first.")
        return self._process

    def _launch(self) -> None:
        """The port is only known to be free until somebody else takes it, hence several tries."""
        binary = find_mongod(self._binary)
        if self._wanted_port is not None:
            if not self._listens(binary, self._wanted_port):
                raise DevServerError(f"Port {self._wanted_port} is taken: give another one, or none.")
            return
        for _ in range(_PORT_TRIES):
            if self._listens(binary, free_port()):
                return
        raise DevServerError(f"{_PORT_TRIES} free ports in a row were taken by others; try again.")

    def _listens(self, binary: Path, port: int) -> bool:
        folder = self._kept or Path(tempfile.gettempdir()) / f"gangline-{secrets.token_hex(6)}"
        self._port = port
        self._process = GuardedProcess(self._command(binary, port, folder), folder=folder, temporary=self._kept is None)
        try:
            self._process.start(_READY)
        except ServerEndedError as ended:
            self.stop()
            if ended.exit_code != _PORT_TAKEN:
                raise
            return False
        return True

    def _command(self, binary: Path, port: int, folder: Path) -> list[str]:
        command = [str(binary), "--dbpath", str(folder), "--port", str(port), "--bind_ip", _HOST, "--nounixsocket"]
        command += ["--replSet", replica_set.NAME, "--oplogSize", str(_OPLOG_MB)]
        command += ["--wiredTigerCacheSizeGB", str(_CACHE_GB)]
        command += ["--setParameter", "diagnosticDataCollectionEnabled=false"]
        if self._fail_points:
            command += ["--setParameter", "enableTestCommands=1"]
        return command


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.create_server((_HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
