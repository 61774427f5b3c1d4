"""The operator's decisions on extensions: installed skills, and tools of MCP servers."""
