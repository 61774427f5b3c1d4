"""Torana: a self-hosted gateway in front of an LLM agent.

People and programs reach one agent; every accepted message is answered, once, in order. The package is
layered, and imports point down only (``make check`` holds it)::

    cli · testing                 operator's commands · the fakes we publish
    app                           builds the object graph, once
    reload                        settings that change while the gateway runs
    config                        file + environment -> frozen values
    api · connectors              the edges: HTTP, chat platforms
    people · schedules            tokens, audit, erasure · what is said or done at a time
    turns                         accept · order · run · record
    agent                         one turn: context -> model <-> tools -> events
    tools                         what a turn may do
    skills · models · memory · sessions · limits
    store · web                   tables, migrations, SQL · guarded fetching of pages
    bare_http · paging            HTTP/1.1 as both listeners take it · lists in pages
    health · telemetry · messages · errors · lasting     vocabulary: imports nothing above
    workers                       processes that compute and can be killed: imports nothing either
"""

__version__ = "0.1.0"
