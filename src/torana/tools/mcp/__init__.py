"""Tools of MCP servers: programs that the gateway starts, or addresses that it calls (Model Context Protocol).

==============  ====================================================================
``entries``     which servers there are, from the settings and from other clients' files
``supervisor``  keeps one server connected, and knows what of it is offered
``servers``     all of them, for those who ask how they stand
``toolset``     their tools, for the agent
``pins``        which definitions of tools were seen
``connection``  one connection; this and what follows needs ``torana[mcp]``
``stdio``       to a program
``http``        to an address
``vetting``     what of a server's list may be offered
``results``     what a call returned, as text
==============  ====================================================================

A server is a stranger: what it says is bounded, and nothing of it is believed.
"""
