"""The watch over the event loop: Gangline's code that blocks it fails with `blockbuster.BlockingError`.

It sees calls that block by nature, such as `time.sleep` or reading a file, not a loop that merely computes. An
`except Exception` around the call catches the error too, so such a test sees the fallback instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from blockbuster import blockbuster_ctx

_ALLOWED = (
    # PyMongo asks once per client whether it runs in a container.
    ("os.stat", "pymongo/pool_options.py", "get_container_env_info"),
    # Starting a process waits until the program is loaded; asyncio does the same.
    ("os.read", "/subprocess.py", "_execute_child"),
)


@contextmanager
def no_blocking() -> Iterator[None]:
    """Watch Gangline's own code; the embedded server is synchronous by design and never runs in a worker's loop."""
    with blockbuster_ctx("gangline", excluded_modules=["gangline.devserver"]) as watch:
        for function, file, caller in _ALLOWED:
            watch.functions[function].can_block_in(file, {caller})
        yield
