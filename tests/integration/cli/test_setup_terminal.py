"""``torana setup`` on a real terminal, with stand-ins for a provider and for Telegram."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.integration.cli.terminal import command_in
from tests.standins.telegram import TOKEN, TelegramStandIn

from torana.testing.openai_server import MODEL_NAME, OpenAIStandIn

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

pytestmark = pytest.mark.long

#: The end of a question whose answer is not shown. The last space comes once the terminal hides what is typed.
HIDDEN = "(not shown): "


async def test_first_telegram_message_after_setup_is_answered(place: Place) -> None:
    with OpenAIStandIn(api_key="sk-right") as provider:
        async with TelegramStandIn() as telegram:
            api_url = f"api_url={telegram.url}"
            arguments = ("setup", "--base-url", provider.url, "--platform", "telegram", "--option", api_url)
            with command_in(place, *arguments, "--no-service") as terminal:

                async def answer(question: str, *keys: str) -> str:
                    shown = await asyncio.to_thread(terminal.expect, question)
                    for key in keys:
                        terminal.type(key)
                    return shown

                await answer("Does the server need a key?", "y\n")
                await answer(HIDDEN, "sk-right\n")
                await answer(f"1  {MODEL_NAME}", "1\n")
                await answer("Require a token", "n\n")
                shown = await answer(HIDDEN, f"{TOKEN}\n")
                shown += await answer("Write these changes?", "y\n")
                shown += await answer("Waiting for the first message")
                await telegram.say("is anybody there?")
                shown += await answer("Let this sender talk to the agent?", "y\n")
                shown += await answer("torana connectors list")
                assert await asyncio.to_thread(terminal.exit_code) == 0
            assert "connected as @torana_bot" in shown
            assert "wrote: is anybody there?" in shown
            assert "sk-right" not in shown
            assert TOKEN not in shown
            assert (place.path / ".env").stat().st_mode & 0o777 == 0o600
            await asyncio.to_thread(place.serve)
            (reply,) = await telegram.shown(1)
            assert "is anybody there?" in reply.text
