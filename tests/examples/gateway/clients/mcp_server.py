"""An MCP server on standard input and output, with a tool that fails and a tool that hangs."""

import asyncio

from mcp.server.mcpserver import MCPServer

server = MCPServer("demo")


@server.tool()
def add(one: int, other: int) -> str:
    """Add two numbers."""
    return str(one + other)


@server.tool(name="break")
def break_it() -> str:
    """Fail."""
    raise ValueError("broken")


@server.tool()
async def hang() -> str:
    """Never return."""
    await asyncio.Event().wait()
    return ""


server.run()
