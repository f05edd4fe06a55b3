"""Tickets are never the same, also after a fork."""

import os

import pytest

from trio_lanes.durable._contract.act import new_ticket


def test_no_ticket_comes_twice_also_in_a_process_that_was_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = [new_ticket() for _ in range(3)]
    pid = os.getpid()
    monkeypatch.setattr("os.getpid", lambda: pid + 1)
    forked = [new_ticket() for _ in range(3)]
    assert len({*first, *forked}) == 6
    assert first[0].partition("-")[0] != forked[0].partition("-")[0]
