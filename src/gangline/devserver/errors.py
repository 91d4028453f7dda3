"""What can go wrong with the embedded server.

DevServerError        the server cannot be found, started or reached; the message says what to do
+-- ServerEndedError  the server process ended while it was being started
"""


class DevServerError(Exception):
    """The embedded MongoDB cannot be found, started or reached. The message names the remedy."""


class ServerEndedError(DevServerError):
    """A server process ended before it was ready; the message shows the end of its log."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        """Keep `exit_code` as the operating system gave it: negative for a signal."""
        super().__init__(message)
        self.exit_code = exit_code
