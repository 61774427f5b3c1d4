"""Records that a connector stores for its account, for the process that listens next."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torana.connectors.base import RetryLater
from torana.errors import StoreUnavailable
from torana.store.engine.database import Connection, Database
from torana.store.rows import leases
from torana.store.rows.extensions import connector_records


class AccountRecords:
    """The records of an account whose lease the holder has; see ``MessageSink``."""

    def __init__(self, *, database: Database, account: str, holder: str) -> None:
        """``account`` is the name of the lease."""
        self._database = database
        self._account = account
        self._holder = holder

    async def load(self, name: str) -> Mapping[str, bytes]:
        """Return the records of this name. Raises ``RetryLater``."""
        try:
            return await self._database.read(partial(connector_records.load, account=self._account, name=name))
        except StoreUnavailable as error:
            raise RetryLater(f"records of the account cannot be read: {error.detail}") from error

    async def save(self, name: str, changes: Mapping[str, bytes | None]) -> None:
        """Store or delete records, all or none. Raises ``RetryLater``, also without the lease."""

        def work(connection: Connection) -> None:
            if not leases.is_held(connection, self._account, self._holder):
                raise RetryLater("another process listens with these credentials")
            connector_records.save(connection, self._account, name, changes)

        try:
            await self._database.run(work)
        except StoreUnavailable as error:
            raise RetryLater(f"records of the account cannot be stored: {error.detail}") from error
