"""Torana: a self-hosted gateway in front of an LLM agent.

People and programs reach one agent. The gateway answers every accepted message once and in order. The package
has layers, and imports point down only (``make check`` verifies this)::

    cli · testing                 the operator's commands · fakes for tests
    app                           builds the object graph
    reload                        settings that change while the gateway runs
    config                        file and environment -> frozen settings
    api · connectors              the edges: HTTP · chat platforms
    people · schedules            tokens, pairing, audit, export, erasure · scheduled messages
    turns                         accept, order, run and record turns
    agent                         one turn: context -> model <-> tools -> events
    tools                         the functions that the agent can call
    skills · models · memory · sessions · limits
    store · web                   tables, migrations, SQL · guarded HTTP requests to the web
    http11 · paging               HTTP/1.1 parsing for both listeners · cursor pagination
    health · telemetry · messages · errors · aio     shared vocabulary
    workers                       processes for computations that can be killed
"""

__version__ = "0.1.0"
