"""What the server does for a read: its plan, and how much it looks at."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gangline.store.claims.protocol import Records

_ENVELOPE = {"lsid", "$db", "$clusterTime", "$readPreference", "txnNumber", "readConcern", "maxTimeMS"}


@dataclass(frozen=True)
class Explained:
    """The stages and indexes of a plan, and the index keys and documents that it examined."""

    stages: frozenset[str]
    indexes: frozenset[str]
    keys: int
    documents: int


async def explained(records: Records, command: Mapping[str, Any]) -> Explained:
    """How the server executes `command`, a read as a listener saw it sent."""
    bare = {key: value for key, value in command.items() if key not in _ENVELOPE}
    answer = await records.database.command("explain", bare, verbosity="executionStats")
    plan, stats = answer["queryPlanner"]["winningPlan"], answer["executionStats"]
    return Explained(
        stages=frozenset(_values(plan, "stage")),
        indexes=frozenset(_values(plan, "indexName")),
        keys=stats["totalKeysExamined"],
        documents=stats["totalDocsExamined"],
    )


def _values(tree: Any, key: str) -> Iterator[str]:
    if isinstance(tree, dict):
        if key in tree:
            yield tree[key]
        for value in tree.values():
            yield from _values(value, key)
    elif isinstance(tree, list):
        for item in tree:
            yield from _values(item, key)
