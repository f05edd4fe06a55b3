"""Spans of durable jobs: their names, their attributes, and their links to submitters."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from trio.testing import MockClock

from trio_lanes.agents import DurableInbox, DurableTurn, inbox_handler
from trio_lanes.durable import MemoryStore, RetryPolicy, open_durable_lanes
from trio_lanes.instruments.otel import OpenTelemetryInstrument


class Spans:
    """A provider, its instrument, and the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.instrument = OpenTelemetryInstrument(provider)

    def of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


async def test_each_run_has_a_span_of_its_handlers_name_with_a_link_to_the_submitter(
    autojump_clock: MockClock, spans: Spans
) -> None:
    tries = []

    async def work(payload: Any) -> None:
        tries.append(payload)
        with spans.tracer.start_as_current_span("inside"):
            if len(tries) == 1:
                raise OSError

    store, instruments = MemoryStore(), [spans.instrument]
    retry = RetryPolicy(backoff=(1, 1))
    with spans.tracer.start_as_current_span("opening"):
        working = open_durable_lanes(store, {"work": work}, retry=retry, instruments=instruments)
        asking = open_durable_lanes(store.another(), {}, worker=False, instruments=instruments)
        async with working as lanes, asking as asker:
            with spans.tracer.start_as_current_span("request") as request:
                job = await asker.submit("work")
            await lanes.job(job.id).wait()
    runs = spans.of("work")
    assert [links(run) for run in runs] == [[request.get_span_context().span_id]] * 2
    assert [run.parent for run in runs] == [None, None]
    attributes = [run.attributes or {} for run in runs]
    assert [one["trio_lanes.durable.id"] for one in attributes] == [job.id, job.id]
    assert [one["trio_lanes.durable.attempt"] for one in attributes] == [1, 2]
    inside = [span.parent.span_id for span in spans.of("inside") if span.parent]
    assert inside == [run.context.span_id for run in runs if run.context]


async def test_a_job_that_is_submitted_outside_of_a_span_has_no_link(
    autojump_clock: MockClock, spans: Spans
) -> None:
    async def work(payload: Any) -> None: ...

    lanes_of = open_durable_lanes(MemoryStore(), {"work": work}, instruments=[spans.instrument])
    async with lanes_of as lanes:
        await (await lanes.submit("work")).wait()
    assert [links(run) for run in spans.of("work")] == [[]]


async def test_each_turn_of_an_inbox_has_the_name_of_its_handler(
    autojump_clock: MockClock, spans: Spans
) -> None:
    async def answer(turn: DurableTurn) -> None: ...

    handlers = {"chat": inbox_handler(answer)}
    async with open_durable_lanes(MemoryStore(), handlers, instruments=[spans.instrument]) as lanes:
        with spans.tracer.start_as_current_span("request") as request:
            for user in ("alice", "bob"):
                await (await DurableInbox(lanes, user, "chat").post("hello")).settled()
    turns = spans.of("chat")
    assert [links(turn) for turn in turns] == [[request.get_span_context().span_id]] * 2
