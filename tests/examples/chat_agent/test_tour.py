"""The tour: each card does its thing with lanes, and says what it saw."""

import pytest
import trio

from examples.chat_agent.commands import TOUR
from examples.chat_agent.tour import CARDS, play
from tests.examples.chat_agent.test_chat import shown

# card: (seconds at most, what it shows below its head)
SEEN = {
    "order": (2, """
ann begins: slow 0.3
ann ends
ann begins: what is 6*7?
ann ends
ann begins: hello
ann ends"""),
    "limit": (2, """
in the middle: 2 running, 4 waiting
at the end: 6 answered, at most 2 at once"""),
    "why": (2, """
turn of ann: 'hello' waits to start:
  main runs as many as it may: turn of bob: 'slow 0.3'
'and another thing' waits behind it
then:
bob ends
ann begins: hello
ann ends
ann begins: and another thing
ann ends"""),
    "steer": (2, """
ann begins: slow 0.3
the turn of ann takes in: what about lunch?
ann ends
the second message was steered
it answers: You said: what about lunch? (That was message 2 of this con…"""),
    "interrupt": (2, """
ann begins: slow 600
ann ends: stopped
ann begins: the house is on fire
ann ends
ann begins: this can wait
ann ends"""),
    "clear": (2, """
cleared 2: cancelled, cancelled
the running one: ran
ann begins: slow 0.3
ann ends"""),
    "stuck and reset": (2, """
after its timeout: running, and it keeps its slot
main: 1 running, 1 waiting
reset gives up 1 job; its caller gets: lane 'main' was reset
ann begins: hello
ann ends"""),
    "deadlock refused": (0.1, """
refused at once: this wait would never end:"""),
    "lending": (0.1, """
inner runs: 1 slot in use, 1 lent
outer has its slot back, and goes on"""),
    "429": (2, """
ann begins: what is up?
bob begins: hello
bob: the model is busy; the next attempt is in 0.3 s
ann ends
bob ends
main was paused: True; answered: 2 of 2"""),
}  # fmt: skip


@pytest.mark.parametrize("number", range(1, 11))
async def test_a_card_shows_what_it_saw(autojump_clock: object, number: int) -> None:
    began = trio.current_time()
    head, *lines = (await play(number)).splitlines()
    card = CARDS[number - 1]
    seconds, seen = SEEN[card.name]
    assert head == f"{number} of 10, {card.name}: {card.says}"
    wanted = [f"  {line}" for line in seen.strip().splitlines()]
    if card.name == "429":  # which of the two asks first is chance
        lines = [line.replace("ann: the", "bob: the") for line in lines]
        lines[:2], wanted[:2] = sorted(lines[:2]), sorted(wanted[:2])
        lines[3:5] = sorted(lines[3:5])
    assert lines[: len(wanted)] == wanted
    assert card.name == "deadlock refused" or len(lines) == len(wanted)
    assert trio.current_time() - began < seconds


def test_there_are_ten_cards() -> None:
    assert [card.name for card in CARDS] == [*SEEN]
    assert len(TOUR) == len(CARDS) == 10


async def test_the_terminal_plays_card_after_card_or_one_by_its_number(
    autojump_clock: object,
) -> None:
    lines = await shown("/tour", "/tour", "/tour 10", "/tour", "/tour 11", "/tour x")
    heads = [line for line in lines if " of 10, " in line]
    assert [head.split(",")[0] for head in heads] == ["1 of 10", "2 of 10", "10 of 10", "1 of 10"]
    assert [line for line in lines if line.startswith("/tour")] == [
        "/tour plays card 2",
        "/tour plays card 3",
        "/tour plays card 2",
    ]
    assert lines[-2:] == ["! usage: /tour [NUMBER from 1 to 10]"] * 2
