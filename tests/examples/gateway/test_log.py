"""The file with the events of a response, which several processes write."""

from pathlib import Path

from examples.openai_api.log import EventLog
from examples.openai_api.wire import Answer


def test_a_response_that_two_processes_end_has_the_first_end(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "resp")
    log.create({})
    first = Answer.begun("ann", "model", {}, id="resp_ann.1")
    log.record(first)
    second = Answer.again(log.read().events)
    log.record(first)  # both processes have found that the job has ended
    first.end("cancelled", "")
    log.record(second)
    second.end("failed", "the process that ran the turn has ended")
    assert second.status == "cancelled"
    events = log.read().events
    assert [event["type"] for event in events] == ["response.created", "response.cancelled"]
    assert second.feed.since(-1) == events


def test_a_response_that_was_deleted_ends_for_those_who_follow_it(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "resp")
    answer = Answer.begun("ann", "model", {}, id="resp_ann.1")
    log.create({}, answer.feed.since(-1))
    log.delete()
    log.record(answer)
    answer.end("cancelled")
    log.note(1)
    assert log.read().events == []


def test_what_a_response_has_told_before_it_is_recorded_is_written(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "resp")
    log.create({})
    answer = Answer.begun("ann", "model", {}, id="resp_ann.1")
    answer.begin()
    log.record(answer)
    answer.end("completed")
    assert log.read().events == answer.feed.since(-1)
    assert log.read().fence == 1
