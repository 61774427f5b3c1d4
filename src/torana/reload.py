"""Reload the settings while the gateway runs. Connectors change at once; other settings need a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from torana.config import Loaded, Settings
from torana.connectors.registry import Account, check_accounts, read_accounts, sender_prefixes
from torana.connectors.runtime.hub import Connectors
from torana.errors import ConfigInvalid, GatewayError, SettingsFaulty
from torana.messages import utc_now
from torana.people.audit import AuditRecord
from torana.store.rows.audit import Act

#: The settings that take effect without a restart.
_TAKEN_ON = frozenset({"connectors"})

_log = logging.getLogger(__name__)


class Reload:
    """Reads the settings again from their sources and applies those that can change."""

    def __init__(self, *, loaded: Loaded, connectors: Connectors, audit: AuditRecord) -> None:
        self._loaded = loaded
        self._kinds = sender_prefixes(loaded.settings.connectors)
        self._connectors = connectors
        self._audit = audit
        #: Serialises reloads, so that the settings that were read last are applied last.
        self._one_at_a_time = asyncio.Lock()

    def kinds(self) -> Collection[str]:
        """Return the prefixes of sender ids that the current settings allow."""
        return self._kinds

    async def by_signal(self) -> None:
        """Reload on a signal to this process. The result is in the log."""
        try:
            await self.by_act(Act(principal="operator", source="signal", at=utc_now()))
        except SettingsFaulty:
            pass  # by_act has logged it
        except GatewayError as error:
            _log.error("settings_not_reloaded", extra={"reason": error.detail})

    async def by_act(self, act: Act) -> list[str]:
        """Apply the connectors' settings and return the names of the accounts that were reconnected or ended.

        Accounts whose settings were refused are always tried again. The audit record is written before anything
        changes. Raises ``SettingsFaulty`` if the settings are not valid; then nothing changes.
        """
        async with self._one_at_a_time:
            try:
                loaded, accounts = await asyncio.to_thread(self._read_settings)
                changed = self._connectors.changes(accounts)
                new = [account for account in accounts if account.name in changed]
                with loaded.annotate_errors():
                    await asyncio.to_thread(check_accounts, new)
            except ConfigInvalid as error:
                faults = error.detail.splitlines()
                _log.error("settings_invalid", extra={"faults": faults})
                raise SettingsFaulty(error.detail) from error
            self._warn_of_other_changes(loaded.settings)
            await self._audit.add(act, "connectors.reload", "connectors", changed=changed)
            changed = await self._connectors.apply(accounts)
            self._kinds = sender_prefixes(loaded.settings.connectors)
            _log.info("connectors_reloaded", extra={"accounts": changed})
            return changed

    def _read_settings(self) -> tuple[Loaded, Sequence[Account]]:
        loaded = self._loaded.again()
        for line in loaded.warnings:
            _log.warning("settings_warning", extra={"detail": line})
        # The port for hooks itself changes only with a restart.
        reachable = bool(self._loaded.settings.hooks_port)
        accounts = read_accounts(loaded.settings.connectors, loaded.provider_environ, reachable=reachable)
        return loaded, accounts

    def _warn_of_other_changes(self, settings: Settings) -> None:
        before = self._loaded.settings
        different = [
            name
            for name in Settings.model_fields
            if name not in _TAKEN_ON and getattr(settings, name) != getattr(before, name)
        ]
        if different:
            _log.warning("settings_need_restart", extra={"settings": different})
