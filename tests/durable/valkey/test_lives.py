"""Simulated lives over the real script on a real server."""

from collections.abc import Iterator

import pytest

from trio_lanes.durable._valkey.script import Script
from trio_lanes.durable.testing import Life, simulate

from . import in_loop
from .server import Server

pytestmark = pytest.mark.real_processes


@pytest.fixture
def lives(own_server: Server) -> Iterator[in_loop.Life]:
    lives = in_loop.Life(own_server)
    yield lives
    lives.close()


@pytest.mark.seeds(6)
def test_nothing_is_wrong_in_a_life_on_valkey(lives: in_loop.Life, seed: int) -> None:
    with lives.in_loop():
        assert simulate(Life(seed), lives.open) == []


def test_a_step_whose_number_is_forgotten_is_found_by_a_life(
    lives: in_loop.Life, own_server: Server
) -> None:
    text = lives.script.text
    for right, wrong in (
        ("if number <= last.number then", "if false then"),
        # else a comparison mends it with the next heartbeat
        ("if not here[number] and number <= tonumber(up_to) then", "if false then"),
    ):
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    lives.script = Script(text)
    own_server.ask(*lives.script.as_library.load)
    with lives.in_loop():
        assert any(simulate(Life(seed), lives.open) for seed in range(20))
