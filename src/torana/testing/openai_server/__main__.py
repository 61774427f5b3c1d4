"""Run the test server: ``python -m torana.testing.openai_server --port 8001``."""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import suppress

from torana.testing.openai_server.server import OpenAIStandIn


def main() -> None:
    """Listen until Ctrl-C; the first line of the output is the base URL for clients."""
    parser = argparse.ArgumentParser(
        prog="python -m torana.testing.openai_server",
        description="An OpenAI-compatible server without a language model, for tests and benchmarks.",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="the port on 127.0.0.1; 0 (default) chooses a free port"
    )
    arguments = parser.parse_args()
    with OpenAIStandIn(port=arguments.port) as server, suppress(KeyboardInterrupt):
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
