"""The check of a platform that refuses the credentials while a reply waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from torana.connectors.base import PermanentError, Place, RetryLater
from torana.testing.connectors import PATIENCE, Line, part


async def check_that_connection_ends(platform: Any, refusal: web.Response, *, to: Place) -> None:
    """Check that the connection ends with the refusal, and that the reply is to be sent later."""
    connector = platform.connector(platform.connector.Settings.model_validate(platform.settings()))
    line = Line(connector)
    run = asyncio.create_task(connector.run(line))
    await line.is_ready.wait()
    platform.end_token()
    platform.token_answers.append(refusal)

    with pytest.raises(RetryLater, match="no access token"):
        await connector.send(part("hello", to))
    with pytest.raises(PermanentError):
        await asyncio.wait_for(run, PATIENCE)
