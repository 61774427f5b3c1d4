"""A language model that answers at once, with the parts of OpenAI's Chat Completions that the gateway uses.

Run it as ``python -m bench.model``; the first line of its output is its base URL. The answer to ``stream N
every S`` has N pieces of text, S seconds apart, each with the time at which it was sent. The answer to ``write
N every S`` has N tokens of Markdown, and that to ``ramble N every S`` has N tokens of one paragraph.

``GET /prompt`` returns the number of characters of the instructions and tools in the largest request since its
last call.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import uvloop

ANSWER = "This is the answer of a model that does not think."

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_PACED = re.compile(r"(stream|write|ramble) (\d+) every ([\d.]+)")

#: About 100 tokens with common blocks of Markdown.
_MARKDOWN = """## A heading

An ordinary paragraph has some sentences, with **strong** words, `code` and a [link](https://example.org/).
It goes on for a few lines, so that its text wraps on the page.

- first item of a list
- second item, which is longer than the first

| name | size |
| --- | --- |
| one | 1 kB |

```python
def double(number: int) -> int:
    return 2 * number
```

"""
_USAGE = {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32}


class _Model:
    """The server of the model."""

    def __init__(self) -> None:
        self._largest = b"{}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                content = await reader.readexactly(int(length[1]) if length else 0)
                if head.startswith(b"GET /prompt "):
                    _write_json(writer, _prompt_size(json.loads(self._largest)))
                    self._largest = b"{}"
                else:
                    self._largest = max(self._largest, content, key=len)
                    await _answer(writer, json.loads(content or "{}"))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def _prompt_size(request: dict[str, Any]) -> int:
    roles = {"system", "developer"}
    texts = [message["content"] for message in request.get("messages", ()) if message["role"] in roles]
    return sum(len(json.dumps(each, ensure_ascii=False)) for each in (*texts, *request.get("tools", ())))


def _write_json(writer: asyncio.StreamWriter, value: object) -> None:
    sent = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
    writer.write(head.encode() + sent)


async def _answer(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    if not body.get("stream"):
        message = {"role": "assistant", "content": ANSWER}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        _write_json(writer, _chunk("chat.completion", choice) | {"usage": _USAGE})
    else:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        paced = _PACED.search(str(body["messages"][-1]["content"]))
        for text in _pieces(paced[1], int(paced[2])) if paced else (ANSWER,):
            delta = {"role": "assistant", "content": text}
            _send(writer, _chunk("chat.completion.chunk", {"index": 0, "delta": delta}))
            if paced:
                await asyncio.sleep(float(paced[3]))
        end: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop"}
        _send(writer, _chunk("chat.completion.chunk", end))
        _send(writer, _chunk("chat.completion.chunk") | {"usage": _USAGE})
        last = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(last), last))
    await writer.drain()


def _pieces(kind: str, count: int) -> Iterator[str]:
    tokens = re.findall(r"\S{1,5} ?|\s+", _MARKDOWN if kind == "write" else _MARKDOWN.split("\n\n")[1] + " ")
    for number in range(count):
        yield f"{time.monotonic():.6f} " if kind == "stream" else tokens[number % len(tokens)]


def _chunk(kind: str, *choices: dict[str, Any]) -> dict[str, Any]:
    return {"id": "c1", "object": kind, "created": 1, "model": "instant", "choices": list(choices)}


def _send(writer: asyncio.StreamWriter, chunk: dict[str, Any]) -> None:
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))


async def main() -> None:
    """Serve until the process is terminated."""
    server = await asyncio.start_server(_Model().serve, "127.0.0.1", 0, backlog=2048)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
