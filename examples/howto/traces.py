"""A job is a span below that of the request which submitted it, and above what it does itself."""

import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from trio_lanes import open_lanes
from trio_lanes.instruments.otel import OpenTelemetryInstrument

exporter = InMemorySpanExporter()  # a real one sends them somewhere
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("gateway")


async def turn() -> None:
    with tracer.start_as_current_span("model"):
        await trio.sleep(1)


async def main() -> None:
    async with open_lanes({"main": 1}, instruments=[OpenTelemetryInstrument(provider)]) as lanes:
        with tracer.start_as_current_span("request"):
            await lanes.run(turn, session="alice")

    spans = exporter.get_finished_spans()
    for span in spans:
        around = [other.name for other in spans if other.context == span.parent]
        print(span.name, "in", *around or ["nothing"])


if __name__ == "__main__":
    trio.run(main)
