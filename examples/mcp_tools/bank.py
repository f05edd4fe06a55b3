"""An MCP server, by stdio or, with a port as its argument, by HTTP."""

import sys
from typing import Annotated

import anyio
from mcp.server.mcpserver import (
    AcceptedElicitation,
    Context,
    Elicit,
    ElicitationResult,
    MCPServer,
    Resolve,
)
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

server = MCPServer("bank", log_level="WARNING")


class Consent(BaseModel):
    """What a person is asked."""

    sure: bool = True


async def ask(to: str, amount: int) -> Elicit[Consent]:
    return Elicit(f"Send {amount} to {to}?", Consent)


@server.tool()
async def transfer(
    to: str, amount: int, consent: Annotated[ElicitationResult[Consent], Resolve(ask)]
) -> str:
    """Send money, if the person allows it."""
    if isinstance(consent, AcceptedElicitation) and consent.data.sure:
        return f"sent {amount} to {to}"
    return f"not sent: {consent.action}"


@server.tool()
async def rate(currency: str, context: Context) -> str:
    """Look up an exchange rate."""
    for done, market in enumerate(("London", "Zurich"), 1):
        await anyio.sleep(0.1)
        await context.report_progress(done, 2, f"asked {market}")
    if currency != "EUR":
        raise ToolError(f"nobody trades {currency}")
    return "1.08"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
