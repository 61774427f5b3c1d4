"""The first minutes with the installed wheel: from ``torana setup`` to the answer on a chat platform."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.cli.terminal import Terminal, process_on_terminal
from tests.standins.telegram import TOKEN, TelegramStandIn

from torana.testing import OpenAIStandIn
from torana.testing.openai_server import MODEL_NAME

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway

#: The end of a question whose answer is not shown. The last space comes once the terminal hides what is typed.
HIDDEN = "(not shown): "


async def test_first_telegram_message_after_setup_is_answered(
    installed_with_all: Path, new_gateway: Callable[..., Gateway]
) -> None:
    gateway = new_gateway(installed_with_all)
    async with TelegramStandIn() as telegram:
        with OpenAIStandIn(
            api_key="sk-right", reply=lambda request: f"Yes, I read: {request.text}"
        ) as provider:
            options = ("--base-url", provider.url, "--option", f"api_url={telegram.url}", "--no-service")
            command = [str(installed_with_all / "torana"), "setup", *options]
            with process_on_terminal(command, cwd=gateway.home, environ=gateway.environ) as (
                descriptor,
                process,
            ):
                terminal = Terminal(descriptor, process)

                async def answer(question: str, keys: str) -> None:
                    await asyncio.to_thread(terminal.expect, question)
                    terminal.type(f"{keys}\n")

                await answer("Does the server need a key?", "y")
                await answer(HIDDEN, "sk-right")
                await answer("Number or name", MODEL_NAME)
                await answer("Require a token", "n")
                await answer("Number or name", "telegram")
                await answer(HIDDEN, TOKEN)
                await answer("Write these changes?", "y")
                shown = await asyncio.to_thread(terminal.expect, "Waiting for the first message")
                assert "Open https://t.me/torana_bot and send a message." in shown
                await telegram.say("is anybody there?")
                await answer("Let this sender talk to the agent?", "y")
                await asyncio.to_thread(terminal.expect, "torana serve            runs the gateway")
                assert await asyncio.to_thread(terminal.exit_code) == 0
            await asyncio.to_thread(gateway.start)
            (reply,) = await telegram.shown(1)
            assert reply.text == "Yes, I read: is anybody there?"
            assert await asyncio.to_thread(gateway.stop) == 0
