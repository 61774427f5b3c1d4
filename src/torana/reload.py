"""Settings that change while the gateway runs: the connectors'; every other one waits for the next start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from torana.config import Loaded, Settings
from torana.connectors.hub import Connectors
from torana.connectors.registry import Account, check_accounts, kinds_of_people, read_accounts
from torana.errors import ConfigInvalid, GatewayError, SettingsFaulty
from torana.messages import utc_now
from torana.people.audit import AuditRecord
from torana.store.audit import Act

#: The settings that are taken on while the gateway runs.
_TAKEN_ON = frozenset({"connectors"})

_log = logging.getLogger(__name__)


class Reload:
    """Reads the settings again, from where they were read at the start, and takes on what can be."""

    def __init__(
        self,
        *,
        loaded: Loaded,
        connectors: Connectors,
        audit: AuditRecord,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._loaded = loaded
        self._kinds = kinds_of_people(loaded.settings.connectors)
        self._connectors = connectors
        self._audit = audit
        self._clock = clock
        #: What was read last is what counts.
        self._one_at_a_time = asyncio.Lock()

    def kinds(self) -> Collection[str]:
        """What people's ids may begin with by the settings that hold at this moment."""
        return self._kinds

    async def by_signal(self) -> None:
        """Do it for whoever may send this process signals; the log tells what came of it."""
        try:
            await self.by_act(Act(principal="operator", source="signal", at=self._clock()))
        except SettingsFaulty:
            pass  # that is in the log
        except GatewayError as error:
            _log.error("the settings were not read again", extra={"reason": error.detail})

    async def by_act(self, act: Act) -> list[str]:
        """Take on the connectors' settings; returns the names of the accounts that are connected anew or ended.

        Those that were refused are tried anew in any case. The act is in the audit record before anything
        changes. Raises ``SettingsFaulty``: then nothing does.
        """
        async with self._one_at_a_time:
            try:
                loaded, accounts = await asyncio.to_thread(self._read)
                changed = self._connectors.changes(accounts)
                new = [account for account in accounts if account.name in changed]
                with loaded.placing():
                    await asyncio.to_thread(check_accounts, new)
            except ConfigInvalid as error:
                faults = error.detail.splitlines()
                _log.error("the settings are faulty; nothing changed", extra={"faults": faults})
                raise SettingsFaulty(error.detail) from error
            self._tell_of_others(loaded.settings)
            await self._audit.add(act, "connectors.reload", "connectors", changed=changed)
            changed = await self._connectors.apply(accounts)
            self._kinds = kinds_of_people(loaded.settings.connectors)
            _log.info("connectors changed" if changed else "no connector changed", extra={"accounts": changed})
            return changed

    def _read(self) -> tuple[Loaded, Sequence[Account]]:
        loaded = self._loaded.again()
        for line in loaded.warnings:
            _log.warning("settings: %s", line)
        # Where calls are listened for changes with the next start alone.
        reachable = bool(self._loaded.settings.hooks_port)
        accounts = read_accounts(loaded.settings.connectors, loaded.provider_environ, reachable=reachable)
        return loaded, accounts

    def _tell_of_others(self, settings: Settings) -> None:
        before = self._loaded.settings
        different = [
            name
            for name in Settings.model_fields
            if name not in _TAKEN_ON and getattr(settings, name) != getattr(before, name)
        ]
        if different:
            _log.warning("these settings want a restart", extra={"settings": different})
