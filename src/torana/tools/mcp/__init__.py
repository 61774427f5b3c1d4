"""Tools of MCP servers: programs that the gateway starts, or URLs that it calls (Model Context Protocol).

==============  ====================================================================
``entries``     reads the servers from the settings and from other clients' files
``supervisor``  keeps one server connected, and decides which of its tools are offered
``servers``     starts all servers, and returns their status
``toolset``     the servers' tools, for the agent
``pins``        the accepted digests of tool definitions
``connection``  one connection and its results; this module and the following need ``torana[mcp]``
``stdio``       the transport to a program
``http``        the transport to a URL
``vetting``     checks a server's tool definitions
==============  ====================================================================

Servers are not trusted: their output is limited, and never treated as instructions.
"""
