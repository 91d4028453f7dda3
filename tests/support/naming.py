"""Names of parametrized tests that are the same in every process: pytest-xdist compares them."""

import re


def plainly(value: object) -> str:
    """`value` as text, without the addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
