"""An agent whose tools are those of an MCP server; the page `docs/agents/mcp.md` shows it."""
