"""Clients that people have, unchanged and in processes of their own, against the gateway."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.support.needs import need

from .gateways import CLIENTS, NODE, client, gateway, upstream

pytestmark = [pytest.mark.real_processes]

SYNC = (sys.executable, CLIENTS / "openai_sync.py")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A gateway with one slot."""
    with gateway() as url:
        yield url


@pytest.fixture
def with_node() -> None:
    need("npm")


ONE_SLOT = ["simple", "conversation", "previous", "stream", "background", "cancel", "hang_up"]
ONE_SLOT += ["functions", "servers", "completions", "structured", "approvals", "errors"]


def test_openai_with_threads(url: str) -> None:
    client(*SYNC, url, *ONE_SLOT)


def test_openai_with_threads_where_several_turns_run_at_once() -> None:
    with gateway("--limit", "8") as url:
        client(*SYNC, url, "modes", "threads")


def test_openai_with_threads_gets_a_429_and_its_retries_succeed() -> None:
    with gateway("--waiting", "1") as url:
        client(*SYNC, url, "full")


def test_faults_of_the_upstream_end_in_a_terminal_state() -> None:
    with upstream() as faulty, gateway("--upstream", faulty) as url:
        client(*SYNC, url, "faults")


def test_openai_on_trio(url: str) -> None:
    client(sys.executable, CLIENTS / "openai_trio.py", url)


def test_openai_over_a_websocket(url: str) -> None:
    client(sys.executable, CLIENTS / "openai_socket.py", url)


def test_anthropic(url: str) -> None:
    client(sys.executable, CLIENTS / "anthropic_sync.py", url)


def test_openai_agents(url: str) -> None:
    client(sys.executable, CLIENTS / "agents_sdk.py", url)


def test_tools_of_an_mcp_server() -> None:
    server = f"demo={sys.executable} {CLIENTS / 'mcp_server.py'}"
    with gateway("--mcp", server, "--tool-timeout", "2") as url:
        client(*SYNC, url, "mcp")


def test_openai_for_node(url: str, with_node: None) -> None:
    client("node", NODE / "openai.mjs", url)


def test_anthropic_for_node(url: str, with_node: None) -> None:
    client("node", NODE / "anthropic.mjs", url)


def test_the_ai_sdk(url: str, with_node: None) -> None:
    client("node", NODE / "ai.mjs", url)
