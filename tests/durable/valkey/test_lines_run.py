"""Every line of the script is run: by the stories of the suite, by random lives, by the faults."""

import re
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.durable.conformance.stores import memory
from tests.durable.conformance.suite import STORIES, play
from tests.durable.conformance.twins import compare_stores
from tests.durable.newcomers import all_dead, newcomers
from trio_lanes.durable._valkey import script

from . import (
    clock,
    test_check,
    test_clock,
    test_faults,
    test_opening,
    test_rare_ways,
    test_rates,
    test_script,
)
from .lua_lines import SEEN, noting, statements
from .place import Place
from .server import Server, programs

pytestmark = [
    pytest.mark.real_processes,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.needs("Valkey"),
]
LIVES = 12
PLACE = Place()


class Lines:
    """The lines that were run on any server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.run: set[str] = set()

    def note(self, server: Server) -> None:
        self.run.update(server.ask("SMEMBERS", SEEN))

    def of(self, test: Callable[..., Any], *arguments: Any) -> None:
        """Run a test, and note the lines."""
        namespace = f"lines-{len(self.run)}"
        trio.run(test, *arguments, *([namespace] if arguments else []))
        self.note(self.server)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """A server of its own, and scripts that note the lines that are run."""
    text = noting()
    monkeypatch.setattr(script, "_READ", re.compile("(?!)"))  # a call that only reads has no notes
    monkeypatch.setattr("trio_lanes.durable._valkey.store.source", lambda: text)
    monkeypatch.setattr(clock, "SCRIPT", clock.on_time_of_tests(text))
    monkeypatch.setattr(test_clock, "BOUNDED", clock.on_time_of_tests(text, bounded=True))
    own = Server(programs()["valkey"], appendfsync="always")
    lines, stop = Lines(own), Server.stop

    def noting_stop(server: Server, *how: Any) -> None:
        lines.note(server)
        stop(server, *how)

    monkeypatch.setattr(Server, "stop", noting_stop)
    try:
        own.start()
        PLACE.server = own
        yield lines
    finally:
        PLACE.close()
        own.remove()


def test_every_line_of_the_script_is_run(lines: Lines) -> None:
    server = lines.server
    for name in STORIES:
        play(name, PLACE.store, clock=PLACE.clock, pause=0.01)
    for seed in range(LIVES):
        compare_stores(memory(), PLACE.store, seed=seed, clock=PLACE.clock)
    for case in test_check.CASES:
        test_check.test_a_check_finds_what_was_changed_from_outside(
            server, f"{case[0].__name__}", *case
        )
    for name, test in vars(test_rare_ways).items():
        if name.startswith("test_"):
            stage = test_rare_ways.Stage(PLACE)
            test(stage, *([server] if "server" in signature(test).parameters else []))
    test_rates.test_of_very_long_busy_times_as_much_is_given_back_as_in_the_core(PLACE, 100)
    time = PLACE.clock()
    bench = test_clock.bench_of(PLACE, Path("newcomers"), time)
    trio.run(newcomers, bench, time.set_clock, "writes", clock=time)
    time = PLACE.clock()
    bench = test_clock.bench_of(PLACE, Path("all-dead"), time)
    trio.run(all_dead, bench, time.jump, clock=time)
    lines.note(server)
    for command in (("SET", "x"), ("HSET", "field", "x"), ("HSET", "schema", "99")):
        trio.run(
            test_opening.test_data_of_another_program_or_version_is_refused_and_untouched,
            *(server, f"{command[0]}-{command[1]}", command, "."),
        )
    lines.of(test_opening.test_only_a_worker_makes_a_namespace_for_the_command, server)
    lines.of(test_opening.test_rules_and_rates_are_kept_as_they_were_given, server)
    lines.of(
        test_opening.test_only_a_worker_migrates_and_no_worker_of_the_older_version_may_live, server
    )
    as_script = test_script.limited(server, "-fcall")
    trio.run(test_script.run_jobs, as_script, "as-script", server, "SCRIPT")
    lines.of(test_faults.test_a_restart_that_loses_nothing_cancels_nothing, server)
    trio.run(
        test_faults.test_after_a_failover_to_older_data_instances_and_server_agree_again, "failover"
    )
    lines.of(test_faults.test_a_namespace_that_vanishes_ends_the_lanes, server)
    assert [line for line in statements() if line not in lines.run] == []
