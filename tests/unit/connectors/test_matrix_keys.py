"""Encryption keys of Matrix are stored as records, change by change."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from nio.crypto import Olm
from nio.store import DefaultStore

from torana.connectors.base import RetryLater
from torana.connectors.platforms.matrix.keys import KeyStore, StoredKeys

USER, DEVICE = "@torana:example.org", "TORANA"


def opened(records: Mapping[str, bytes] | None = None) -> KeyStore:
    store = KeyStore(USER, DEVICE)
    store.load(records or {})
    return store


def save_rooms(store: Any, *rooms: str) -> None:
    store.save_encrypted_rooms(rooms)


def keys_of(olm: Olm) -> object:
    return olm.account.identity_keys, olm.account.one_time_keys


class Records(dict[str, bytes]):
    """The records of an account."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Exception | None = None

    async def save(self, changes: Mapping[str, bytes | None]) -> None:
        if self.fault is not None:
            raise self.fault
        for key, body in changes.items():
            self.pop(key, None)
            if body is not None:
                self[key] = body


async def test_records_hold_the_keys_of_each_moment() -> None:
    records = Records()
    store = opened()
    keys = StoredKeys(store, records.save)
    olm = Olm(USER, DEVICE, store)
    await keys.save()
    assert keys_of(Olm(USER, DEVICE, opened(records))) == keys_of(olm)

    olm.account.generate_one_time_keys(5)
    olm.save_account()
    assert keys_of(Olm(USER, DEVICE, opened(records))) != keys_of(olm)
    await keys.save()
    assert keys_of(Olm(USER, DEVICE, opened(records))) == keys_of(olm)


async def test_only_changed_rows_are_stored() -> None:
    records = Records()
    store = opened()
    keys = StoredKeys(store, records.save)
    Olm(USER, DEVICE, store)
    save_rooms(store, "!a", "!b")
    await keys.save()
    before = dict(records)

    store.delete_encrypted_room("!a")
    store.save_sync_token("s1")
    store.save_sync_token("s2")  # replaces the row
    changes = store.take_changes()

    assert sorted(changes) == ["encryptedrooms/1", "synctokens/1", "synctokens/2"]
    assert changes["encryptedrooms/1"] is changes["synctokens/1"] is None
    await records.save(changes)
    assert records.items() - before.items() == {("synctokens/2", changes["synctokens/2"])}
    again = opened(records)
    assert (again.load_encrypted_rooms(), again.load_sync_token()) == ({"!b"}, "s2")
    assert again.take_changes() == {}


async def test_changes_that_cannot_be_stored_are_stored_later() -> None:
    records = Records()
    store = opened()
    keys = StoredKeys(store, records.save)
    olm = Olm(USER, DEVICE, store)
    records.fault = RetryLater("the database is gone")
    with pytest.raises(RetryLater):
        await keys.save()

    records.fault = None
    await keys.save()
    assert keys_of(Olm(USER, DEVICE, opened(records))) == keys_of(olm)


async def test_keys_in_a_file_of_an_earlier_version_are_copied(tmp_path: Path) -> None:
    file = DefaultStore(USER, DEVICE, str(tmp_path), "DEFAULT_KEY")
    olm = Olm(USER, DEVICE, file)
    save_rooms(file, "!a")
    file.database.close()
    path = tmp_path / f"{USER}_{DEVICE}.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE other (x)")
        connection.execute("INSERT INTO other VALUES (1)")

    store = KeyStore(USER, DEVICE)
    store.copy_file(path)
    records = Records()
    await StoredKeys(store, records.save).save()

    again = opened(records)
    assert keys_of(Olm(USER, DEVICE, again)) == keys_of(olm)
    assert again.load_encrypted_rooms() == {"!a"}
    assert not [key for key in records if key.startswith("other")]


def test_unknown_tables_and_columns_are_ignored() -> None:
    store = KeyStore(USER, DEVICE)

    store.load(
        {"nothing/1": b'{"a": 1}', "synctokens/1": b'{"token) --": 1}', "storeversion/1": b'{"version": 9}'}
    )

    assert store.take_changes() == {}
    assert (store.load_sync_token(), store.load_encrypted_rooms()) == (None, set())
