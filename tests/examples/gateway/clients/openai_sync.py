"""The `openai` client with threads: python openai_sync.py BASE_URL SCENARIO..."""

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
from pydantic import BaseModel

client = openai.OpenAI(base_url=sys.argv[1], api_key="any", timeout=120)
create: Callable[..., Any] = client.responses.create


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls in threads, each started when the one before it has sent its request."""
    results: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            results[place] = calls[place]()
        except openai.APIError as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=[place]) for place in range(len(calls))]
    for thread in threads:
        thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join()
    return results


def simple() -> None:
    response = create(model="any", input="hello")
    assert response.status == "completed"
    assert response.output_text.startswith("Hello!"), response
    assert response.model == "built-in"  # the model that answers
    assert client.responses.retrieve(response.id).output_text == response.output_text
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    assert create(input=parts, instructions="be kind").output_text == response.output_text


def conversation() -> None:
    """A second request waits its turn, and both are answered in order."""
    id = client.conversations.create().id
    first, second = together(
        lambda: create(input="slow 1", conversation=id),
        lambda: create(input="two", conversation=id),
    )
    assert first.output_text.startswith("Sorry"), first
    assert "message 2" in second.output_text, second
    items = client.conversations.items.list(id, order="asc").data
    texts = [part.text for item in items for part in getattr(item, "content", ())]
    assert texts == ["slow 1", first.output_text, "two", second.output_text]


def previous() -> None:
    """Responses are a tree: two that go on from one do not see each other."""
    root = create(input="one")
    left = create(input="left", previous_response_id=root.id)
    right = create(input="right", previous_response_id=root.id)
    leaf = create(input="leaf", previous_response_id=left.id)
    assert "message 2" in left.output_text
    assert "message 2" in right.output_text
    assert "message 3" in leaf.output_text


def stream() -> None:
    events = list(create(input="long answer of 5", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    assert text.count("\n") == 4
    with client.responses.stream(model="any", input="hello") as helper:
        assert helper.get_final_response().output_text.startswith("Hello")


def background() -> None:
    """A feed is read on without a gap after every break."""
    response = create(input="long answer of 12", background=True)
    assert response.status in ("queued", "in_progress")
    numbers: list[int] = []
    pieces = []
    while True:
        after = numbers[-1] if numbers else -1
        with client.responses.retrieve(response.id, stream=True, starting_after=after) as events:
            for count, event in enumerate(events):
                numbers.append(event.sequence_number)
                pieces.append(getattr(event, "delta", ""))
                if count == 9 or event.type == "response.completed":
                    break
        if event.type == "response.completed":
            break
    assert numbers == list(range(len(numbers)))
    assert "".join(pieces) == event.response.output_text
    assert client.responses.retrieve(response.id).status == "completed"


def cancel() -> None:
    id = client.conversations.create().id
    running = create(input="slow 600", conversation=id, background=True)
    waiting = create(input="hello", conversation=id, background=True)
    last = create(input="hello", conversation=id, background=True)
    assert client.responses.cancel(waiting.id).status == "cancelled"
    assert client.responses.cancel(running.id).status == "cancelled"
    assert client.responses.cancel(running.id).status == "cancelled"
    while (status := client.responses.retrieve(last.id).status) != "completed":
        assert status in ("queued", "in_progress"), status
        time.sleep(0.05)


def hang_up() -> None:
    """A client that leaves cancels its job: the only slot is free for the next."""
    with create(input="slow 600", stream=True) as events:
        next(iter(events))
    assert create(input="hello").status == "completed"
    try:
        create(input="slow 600", timeout=1.0)
    except openai.APITimeoutError:
        pass
    assert create(input="hello").status == "completed"


def full() -> None:
    """A full lane is a 429 with the time to wait; the client's own retries succeed."""
    impatient = client.with_options(max_retries=0)
    calls = [lambda: impatient.responses.create(input="slow 2") for _ in range(4)]
    results = together(*calls)
    refused = [result for result in results if isinstance(result, openai.RateLimitError)]
    assert refused, results
    assert refused[0].code == "rate_limit_exceeded"
    headers = refused[0].response.headers
    assert int(headers["retry-after-ms"]) >= 200
    assert headers["x-ratelimit-limit-requests"] == "1"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    patient = client.with_options(max_retries=30)
    calls = [lambda: patient.responses.create(input="slow 0.5") for _ in range(4)]
    assert [result.status for result in together(*calls)] == ["completed"] * 4


def modes() -> None:
    """`metadata.when_busy`, mode by mode."""

    def busy(mode: str, text: str = "two", first: str = "slow 2") -> tuple[Any, Any, list[str]]:
        id = client.conversations.create().id
        one, two = together(
            lambda: create(input=first, conversation=id),
            lambda: client.with_options(max_retries=0).responses.create(
                input=text, conversation=id, metadata={"when_busy": mode}
            ),
        )
        items = client.conversations.items.list(id, order="asc").data
        return one, two, [p.text for item in items for p in getattr(item, "content", ())]

    def steer() -> None:
        one, two, _ = busy("steer")
        assert (one.status, two.status) == ("completed", "completed")
        assert "You said: two" in one.output_text, one  # the turn answers the second, too
        assert two.output_text == one.output[-1].content[0].text

    def interrupt() -> None:
        one, two, texts = busy("interrupt")
        assert (one.status, two.status) == ("cancelled", "completed")
        assert texts[0] == "slow 2"

    def rollback() -> None:
        one, two, texts = busy("rollback")
        assert (one.status, two.status) == ("cancelled", "completed")
        assert texts[0] == "two", texts  # the interrupted turn has left the conversation

    def reject() -> None:
        one, two, _ = busy("reject")
        assert one.status == "completed"
        assert isinstance(two, openai.ConflictError)
        assert two.code == "conversation_busy"

    def several(mode: str) -> list[Any]:
        id = client.conversations.create().id
        more = {"conversation": id, "metadata": {"when_busy": mode}}
        return together(
            lambda: create(input="slow 2", conversation=id),
            lambda: create(input="two", **more),
            lambda: create(input="three", **more),
        )

    def replace() -> None:
        states = [response.status for response in several("replace")]
        assert states == ["completed", "cancelled", "completed"]

    def collect() -> None:
        first, two, three = several("collect")
        assert first.status == "completed"
        assert two.output_text == three.output_text
        assert "two" in two.output_text
        assert "three" in two.output_text

    every = (steer, interrupt, rollback, reject, replace, collect)
    with ThreadPoolExecutor(len(every)) as pool:
        for done in [pool.submit(mode) for mode in every]:
            done.result()


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def functions() -> None:
    """The turn waits for its client, without its slot: the only one serves others meanwhile."""
    asked = create(input="the weather in Paris, please", tools=[WEATHER])
    (call,) = asked.output
    assert (call.type, call.name, call.arguments) == (
        "function_call",
        "get_weather",
        '{"city": "Paris"}',
    )
    assert create(input="hello").status == "completed"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    told = create(input=[output], previous_response_id=asked.id, tools=[WEATHER])
    assert told.output_text == "sunny", told
    after = create(input="thanks", previous_response_id=told.id)
    assert "message 2" in after.output_text, after


def loops() -> None:
    """72 loops with a tool: of one client, of eight threads, and with a client for each request."""

    def loop(of: Callable[[], openai.OpenAI]) -> None:
        responses: Any = of().responses
        asked = responses.create(model="any", input="the weather in Rome", tools=[WEATHER])
        (call,) = asked.output
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        responses = of().responses
        told = responses.create(
            model="any", input=[output], previous_response_id=asked.id, tools=[WEATHER]
        )
        assert told.output_text == "sunny", told

    one = openai.OpenAI(base_url=sys.argv[1], api_key="any", timeout=120)
    for _ in range(24):
        loop(lambda: one)
        loop(lambda: openai.OpenAI(base_url=sys.argv[1], api_key="any", timeout=120))
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(loop, lambda: one) for _ in range(24)]:
            done.result()


def servers() -> None:
    """Tools of servers run at once, and speak in the order of the calls."""
    tools = [{"type": "mcp", "server_label": "gateway"}]
    response = create(input="what is 6 * 7, and what time is it? search lanes", tools=tools)
    calls = [item for item in response.output if item.type == "mcp_call"]
    assert [call.name for call in calls] == ["time", "calc", "search"], response
    assert calls[1].output == "6 * 7 = 42"
    assert response.output_text.index("UTC") < response.output_text.index("6 * 7 = 42")


def mcp() -> None:
    """Tools of an MCP server: one that works, one that fails, and one that hangs."""
    tools = [{"type": "mcp", "server_label": "demo", "server_url": "http://localhost/"}]
    response = create(input="please add 20 and 22", tools=tools)
    assert response.output[0].type == "mcp_call"
    assert response.output[0].output == "42"
    assert response.output_text == "42"
    broken = create(input="break it", tools=tools)
    assert broken.output[0].status == "failed"
    assert broken.status == "completed"
    hung = create(input="hang", tools=tools)
    assert "no answer after" in hung.output[0].error, hung


def completions() -> None:
    assert [model.id for model in client.models.list()] == ["built-in"]
    parts: Any = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages: Any = [{"role": "system", "content": "be kind"}, {"role": "user", "content": parts}]
    whole = client.chat.completions.create(model="any", messages=messages, user="ann")
    assert (whole.choices[0].message.content or "").startswith("Hello")
    chunks = client.chat.completions.create(
        model="any", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    seen = list(chunks)
    text = "".join(c.choices[0].delta.content or "" for c in seen if c.choices)
    assert text == whole.choices[0].message.content
    assert seen[-1].usage is not None
    function = {"type": "function", "function": {k: WEATHER[k] for k in ("name", "parameters")}}
    asked: Any = [{"role": "user", "content": "weather in Paris"}]
    called = client.chat.completions.create(model="any", messages=asked, tools=[function])  # type: ignore[list-item]
    (call,) = called.choices[0].message.tool_calls or []
    asked += [
        called.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "sun"},
    ]
    assert (
        client.chat.completions.create(model="any", messages=asked).choices[0].message.content
        == "sun"
    )


class City(BaseModel):
    name: str
    people: int


def structured() -> None:
    """An answer has the schema that the client asks for."""
    parsed = client.responses.parse(model="any", input="Paris 5", text_format=City).output_parsed
    assert parsed is not None
    assert parsed.people == 5
    with client.responses.stream(model="any", input="Paris 5", text_format=City) as events:
        assert events.get_final_response().output_parsed == parsed
    chat = client.chat.completions.parse(
        model="any", messages=[{"role": "user", "content": "Paris 5"}], response_format=City
    )
    assert chat.choices[0].message.parsed == parsed


def approvals() -> None:
    """A tool that a person has to approve runs when the client has sent the approval."""
    tools = [{"type": "mcp", "server_label": "gateway", "require_approval": "always"}]
    asked = create(input="what is 6 * 7", tools=tools)
    (request,) = asked.output
    assert request.type == "mcp_approval_request"
    approval = {"type": "mcp_approval_response", "approval_request_id": request.id}
    more = {"previous_response_id": asked.id, "tools": tools}
    done = create(input=[approval | {"approve": True}], **more)
    assert done.output[0].output == done.output_text == "6 * 7 = 42"


def threads() -> None:
    beta: Any = client.beta.threads

    def wait(run: Any, *states: str) -> Any:
        while run.status not in states:
            assert run.status in ("queued", "in_progress", "cancelling"), run
            time.sleep(0.05)
            run = beta.runs.retrieve(run.id, thread_id=run.thread_id)
        return run

    thread = beta.create()
    runs = []
    for text in ("slow 2", "two"):  # both run at once, and keep their places
        beta.messages.create(thread.id, role="user", content=text)
        runs.append(beta.runs.create(thread.id, assistant_id="any"))
    wait(runs[1], "completed")
    assert wait(runs[0], "in_progress", "completed").status == "in_progress"
    wait(runs[0], "completed")
    listed = beta.messages.list(thread.id, order="asc").data
    texts = [message.content[0].text.value for message in listed]
    assert [texts[0], texts[2]] == ["slow 2", "two"], texts
    assert texts[1].startswith("Sorry")
    assert texts[3].startswith("You said: two")

    function = {"type": "function", "function": {k: WEATHER[k] for k in ("name", "parameters")}}
    beta.messages.create(thread.id, role="user", content="weather in Paris")
    run = wait(beta.runs.create(thread.id, assistant_id="any", tools=[function]), "requires_action")
    (call,) = run.required_action.submit_tool_outputs.tool_calls
    outputs = [{"tool_call_id": call.id, "output": "sunny"}]
    run = beta.runs.submit_tool_outputs(run.id, thread_id=thread.id, tool_outputs=outputs)
    wait(run, "completed")
    assert beta.messages.list(thread.id).data[0].content[0].text.value == "sunny"

    beta.messages.create(thread.id, role="user", content="slow 600")
    run = beta.runs.create(thread.id, assistant_id="any")
    beta.runs.cancel(run.id, thread_id=thread.id)
    wait(run, "cancelled")


def errors() -> None:
    def refused(kind: type[openai.APIStatusError], call: Callable[[], Any]) -> None:
        body = None
        try:
            call()
        except kind as error:
            body = error.body
        assert body is not None, kind

    refused(openai.BadRequestError, lambda: create(input=[]))
    refused(openai.BadRequestError, lambda: create(input=[{"type": "nonsense"}]))
    refused(openai.BadRequestError, lambda: create(input="x", metadata={"when_busy": "never"}))
    refused(openai.BadRequestError, lambda: create(input="x", conversation="../up"))
    refused(openai.BadRequestError, lambda: create(input="x", tools=[{"type": "web_search"}]))
    refused(openai.NotFoundError, lambda: client.responses.retrieve("resp_nothing.5"))
    refused(openai.NotFoundError, lambda: client.responses.cancel("resp_nothing.5"))
    refused(openai.APIStatusError, lambda: create(input="x" * 5_000_000))
    for id in ("resp_nothing.5", "resp_of_another_provider"):
        refused(openai.NotFoundError, lambda id=id: create(input="x", previous_response_id=id))
    refused(openai.BadRequestError, lambda: create(input="x", temperature="hot"))
    refused(openai.NotFoundError, lambda: client.get("/nothing", cast_to=object))
    impatient = openai.OpenAI(base_url=sys.argv[1], api_key="any", timeout=120)  # but retries
    refused(openai.InternalServerError, lambda: impatient.responses.create(input="fail now"))


def faults() -> None:
    """Through the gateway to an upstream that is busy, cuts its stream off, and sends garbage."""
    busy = create(input="busy 300ms twice")
    assert busy.output_text.startswith("You said: busy"), busy
    for text in ("cut_off", "garbage", "http_error"):
        failed = None
        try:
            create(input=text)
        except openai.InternalServerError as error:
            failed = error
        assert failed is not None
        assert (failed.status_code, failed.code) == (502, "upstream_error")
        events = list(create(input=text, stream=True))
        assert events[-1].type == "response.failed"
        assert [event.sequence_number for event in events] == list(range(len(events)))
    assert create(input="slow 2").status == "completed"
    assert create(input="hello").status == "completed"


for scenario in sys.argv[2:]:
    globals()[scenario]()
