"""The `openai` client over a WebSocket: python openai_socket.py BASE_URL."""

import sys
from typing import Any

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="any", timeout=120)

with client.responses.connect() as connection:
    events = iter(connection)

    def until(*kinds: str) -> Any:
        """Return the next event of one of these kinds."""
        return next(event for event in events if event.type in kinds)

    connection.response.create(model="built-in", input="hello")
    connection.response.create(model="built-in", input="long answer of 5")
    first = until("response.completed").response
    assert first.output_text.startswith("Hello"), first
    assert until("response.completed").response.output_text.count("\n") == 4

    connection.response.create(model="built-in", input="two", previous_response_id=first.id)
    assert "message 2" in until("response.completed").response.output_text

    connection.response.create(model="built-in", input="slow 2")
    id = until("response.in_progress").response.id
    connection.response.steer(input="and more", previous_response_id=id)
    accepted = until("response.steer.accepted", "response.steer.failed")
    assert accepted.steer.previous_response_id == id, accepted
    ended = until("response.incomplete", "response.completed").response
    assert ended.incomplete_details.reason == "steered"
    assert ended.output_text.startswith("Sorry")
    successor = until("response.created").response
    assert successor.previous_response_id == id
    assert "and more" in until("response.completed").response.output_text

    connection.send({"type": "response.create", "input": []})
    error = until("error")
    assert (error.status, error.error.type) == (400, "invalid_request_error")

    connection.response.create(model="built-in", input="slow 600")
    until("response.in_progress")

# the connection has ended: the only slot is free for the next request
assert client.responses.create(model="built-in", input="hello").status == "completed"
