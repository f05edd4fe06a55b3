"""The example of a storage: a store over it on a real server, in the conformance suite."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.valkey_storage import storage
from examples.valkey_storage.storage import ValkeyStorage
from tests.durable.conformance.suite import durable_store_suite, play
from trio_lanes.durable.storage import StorageStore

from .clock import KEY
from .place import Place
from .server import Server

pytestmark = pytest.mark.real_processes
PLACE = Place()


def on_time_of_tests(script: tuple[str, str]) -> tuple[str, str]:
    text = script[0].replace("call('TIME')", f"call('HMGET', '{KEY}', 'seconds', 'micros')")
    assert text != script[0]
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@pytest.fixture(autouse=True)
def place(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_READ", "_COMMIT"):
        monkeypatch.setattr(storage, name, on_time_of_tests(getattr(storage, name)))
    PLACE.server = server
    yield
    PLACE.close()


def make(folder: Path) -> StorageStore:
    assert PLACE.server is not None
    url = PLACE.server.url
    return StorageStore(lambda me: ValkeyStorage(url, folder.name, me=me, patience=60), patience=60)


@pytest.mark.parametrize(
    "name",
    [
        "test_a_job_runs_and_every_waiting_task_gets_its_result",
        "test_the_runs_of_a_crash_go_before_waiting_jobs",
        "test_two_instances_at_once_see_the_same",
        "test_what_an_instance_has_no_room_for_wakes_another",
        "test_a_lock_goes_over_instances_and_is_freed_with_its_lease",
        "test_the_same_key_is_the_same_job_until_it_is_forgotten",
        "test_events_are_counted_over_all_attempts_and_need_the_fence",
        "test_clear_takes_jobs_that_have_not_started_and_leaves_those_that_run",
    ],
)
def test_a_story_holds_on_a_server(name: str) -> None:
    assert play(name, make, clock=PLACE.clock, pause=0.01) == []


TestStorageInValkey = pytest.mark.thorough(durable_store_suite(make, clock=PLACE.clock, pause=0.01))
