"""A database of one's own on a given server: for demos, benchmarks and tests, never for a queue in use."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from gangline.store.connection import Address, Connection


def in_database(uri: str, name: str) -> str:
    """Return ``uri`` with the database ``name``. Who logs in goes on to do so where ``uri`` says."""
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query))
    if "@" in parts.netloc and "authsource" not in {option.lower() for option in options}:
        options["authSource"] = parts.path.strip("/") or "admin"
    return urlunsplit(parts._replace(path=f"/{name}", query=urlencode(options)))


async def drop_database(uri: str) -> None:
    """Drop the database that ``uri`` names."""
    connection = Connection(Address.parse(uri, prefix=""))
    try:
        await connection.records.database.client.drop_database(connection.address.database)
    finally:
        await connection.close()
