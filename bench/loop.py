"""The bare agent loop: pydantic-ai and the model without a gateway. Run it as ``python -m bench.loop URL``.

Each line of input is ``MESSAGES CONCURRENCY``. Each line of output is a JSON object with the milliseconds of
each message and the messages per second.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def _rounds(agent: Agent, messages: int, concurrency: int) -> str:
    numbers = iter(range(messages))
    times: list[float] = []

    async def caller() -> None:
        for _ in numbers:
            began = time.perf_counter()
            async with agent.run_stream_events("hello") as events:
                async for _event in events:
                    pass
            times.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(concurrency)))
    return json.dumps({"times": times, "per_second": messages / (time.perf_counter() - began)})


async def main(url: str) -> None:
    """Measure as each line of the input says."""
    model = OpenAIChatModel("instant", provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(model, instructions="Be short.")
    await _rounds(agent, 20, 1)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        messages, concurrency = map(int, line.split())
        print(await _rounds(agent, messages, concurrency), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
