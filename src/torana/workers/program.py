"""The program of a worker process: ``python -I -B program.py BYTES``.

It reads one request per line from standard input, calls the function that the request names, and writes a line
with the result to standard output. Its address space is limited to ``BYTES``, and its processor time to the
limit in the request: the system kills it with SIGXCPU above that. It cannot write files.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

#: Added to the gateway's niceness, so that the gateway takes precedence.
_NICENESS = 10
_OPEN_FILES = 64
_STACK = 512 * 1024


def main(memory: int) -> None:
    """Answer requests until standard input ends."""
    _limit_process(memory)
    # uvloop leaves files open that the gateway inherited.
    for number in map(int, os.listdir("/dev/fd")):  # noqa: PTH208 - pathlib takes long to import
        if number > 2:
            with suppress(OSError):
                os.close(number)
    # Only replies may be written to standard output; the output of libraries goes to /dev/null.
    replies = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "wb") as null:  # noqa: PTH123 - as above
        os.dup2(null.fileno(), 1)
    # The path of a gateway that is not installed. It comes last, so that it shadows no other module.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))  # noqa: PTH120
    for line in _requests():
        replies.write(_reply(line) + b"\n")
        replies.flush()


def _limit_process(memory: int) -> None:
    os.nice(_NICENESS)
    # Where Linux groups processes by session, the niceness counts only in the worker's own session.
    with suppress(OSError), open("/proc/self/autogroup", "w") as session:  # noqa: PTH123 - pathlib takes long to import
        session.write(str(_NICENESS))
    _limit(resource.RLIMIT_AS, memory)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    # A signal to all processes of the gateway starts its shutdown; running calls may finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _limit(kind: int, value: int) -> None:
    """Lower a limit. A lower limit is not raised."""
    _, hard = resource.getrlimit(kind)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with suppress(ValueError, OSError):  # macOS does not limit the address space
        resource.setrlimit(kind, (lowest, lowest))


def _requests() -> Iterator[bytes]:
    """Yield the lines of standard input. Its end ends the process at once, even during a call.

    The gateway holds the other end, so no worker outlives it.
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        while line := sys.stdin.buffer.readline():
            lines.put(line)
        os._exit(0)

    threading.stack_size(_STACK)
    threading.Thread(target=read, daemon=True).start()
    while True:
        yield lines.get()


def _reply(line: bytes) -> bytes:
    try:
        request = json.loads(line.decode("utf-8", "surrogatepass"))
        _limit_processor_time(request["seconds"])
        function = getattr(_module(request["module"], request["file"]), request["function"])
        return _encode({"value": function(**request["arguments"])})
    except Exception as error:  # noqa: BLE001 - the gateway raises it again
        return _encode({"error": type(error).__name__, "message": str(error)})


def _encode(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _limit_processor_time(seconds: int) -> None:
    """Limit the processor time from now on. Above it, the system kills the process.

    The system counts whole seconds from the start of the process, so the limit may be up to one second higher.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    end = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (end if hard == resource.RLIM_INFINITY else min(end, hard), hard))


def _module(name: str, file: str) -> Any:
    """Import a module from its file, without its package, which may be large."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is not a module")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


if __name__ == "__main__":
    main(int(sys.argv[1]))
