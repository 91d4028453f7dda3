"""The indexes that claims and looks name in their hints, and what happens when one of them is missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import pymongo
from pymongo import IndexModel
from pymongo.errors import OperationFailure

from gangline.store.claims.protocol import Records
from gangline.store.errors import is_transient
from gangline.store.schema import DUE, LOCK_ID, LOCKED, READY_BY_NAME, READY_BY_PRIORITY, Index

logger = logging.getLogger("gangline.indexes")

# Nothing is hinted to the lock id's, so no error tells that it is missing: each read-back would scan the collection.
ACQUISITION_INDEXES = (READY_BY_NAME, READY_BY_PRIORITY, DUE, LOCKED, LOCK_ID)
BUILD_SECONDS = 60 * 60.0  # to make an index takes as long as the collection is large

Hint = Callable[[Index], str | None]


def by_name(index: Index) -> str | None:
    """Return the hint to ``index``: its name, since the Node side's indexes may share a key pattern's beginning."""
    return index.name


class AcquisitionIndexes:
    """Keeps the indexes that a worker cannot do without: the server refuses a hint to an index that it lacks.

    While one is missing that cannot be made, for want of the right for example, nothing is hinted to, and the server
    chooses: slower, but jobs run.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._hinted = True
        self._doubted = False
        self._told: str | None = None
        self._mending = asyncio.Lock()  # scheduler and reconciler may both notice, and one of them tells

    def hint(self, index: Index) -> str | None:
        """Return the hint to ``index``, or ``None`` while the server has to choose."""
        return by_name(index) if self._hinted else None

    async def refused(self) -> bool:
        """Mend after the server refused a hint; return whether it is worth trying again at once.

        Raises:
            pymongo.errors.PyMongoError: the server could not be asked.
        """
        async with self._mending:
            hinted = self._hinted
            missing = await self._missing()
            made = await self._make(missing, ACQUISITION_INDEXES)  # all: it waits for those that others are making
            # One that is there and yet refused is hidden; the first time, it was another worker that was faster.
            self._hinted = made and (bool(missing) or not self._doubted)
            self._doubted = not missing
            return hinted

    async def keep(self) -> None:
        """Make what is missing, refused or not, and trust in hints again.

        Raises:
            pymongo.errors.PyMongoError: the server could not be asked.
        """
        async with self._mending:
            missing = await self._missing()
            if missing:
                await self._make(missing, missing)
            self._hinted, self._doubted = True, False

    async def _missing(self) -> list[Index]:
        try:
            present = await self._records.index_information()
        except OperationFailure as error:
            if is_transient(error):
                raise
            return []  # who may not even look learns what is missing from a refusal, if at all
        return [index for index in ACQUISITION_INDEXES if index.name not in present]

    async def _make(self, missing: Sequence[Index], wanted: Sequence[Index]) -> bool:
        try:
            with pymongo.timeout(BUILD_SECONDS):
                await self._records.create_indexes([IndexModel(list(index.keys), **index.options) for index in wanted])
        except OperationFailure as error:
            if is_transient(error):
                raise
            self._tell_lacking(missing, error)
            return False
        if missing:
            self._told = None
            logger.warning(
                "the indexes %s of %s were missing; they are made again",
                _names(missing),
                self._records.full_name,
                extra={"event": "indexes_restored"},
            )
        return True

    def _tell_lacking(self, missing: Sequence[Index], error: OperationFailure) -> None:
        names = _names(missing)
        if names == self._told:
            return
        self._told = names
        logger.warning(
            "the indexes %s of %s are missing and could not be made (%s); until they are there claims are slow",
            names or "that claims need",
            self._records.full_name,
            error.details.get("codeName", error.code) if error.details else error.code,
            extra={"event": "indexes_missing"},
        )


def _names(indexes: Sequence[Index]) -> str:
    return ", ".join(index.name for index in indexes)
