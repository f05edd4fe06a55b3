"""Webhooks in the shapes that Slack, Telegram and Discord send, and their replies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx2
import pytest
import trio
from starlette.applications import Starlette
from starlette.routing import Route
from trio.testing import MockClock

from examples.deliveries.hooks import BEGUN, FAILED, READY, Hooks
from examples.deliveries.replies import AGAIN_SECONDS, APIS, NO_TEXT, parts_of
from examples.openai_api.errors import error
from examples.openai_api.http import guarded
from trio_lanes.durable import (
    DurableLanes,
    DurableState,
    MemoryStore,
    NoRetry,
    Store,
    open_durable_lanes,
)

from .deliveries import SECRETS, command, discord, said, slack, telegram

OPEN = (DurableState.WAITING, DurableState.PARKED, DurableState.RUNNING)


class Chats:
    """The APIs that replies go to. They remember what arrives."""

    def __init__(self) -> None:
        self.replies: list[tuple[str, str, str]] = []  # method, path and text
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.answers: list[Any] = []  # of the next requests: a status, its headers, its body
        self.delay = 0.0

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        answer = self.answers.pop(0) if self.answers else (200, {}, {"ok": True})
        if isinstance(answer, httpx2.ConnectError):
            raise answer  # nothing has arrived
        body = json.loads(request.content)
        text = body.get("text", body.get("content"))
        self.replies.append((request.method, request.url.path, text))
        self.bodies.append(body)
        self.times.append(trio.current_time())
        await trio.sleep(self.delay)
        if isinstance(answer, Exception):
            raise answer
        status, headers, found = answer
        return httpx2.Response(status, headers=headers, json=found)

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text in self.replies]


async def echo(session: str, text: str) -> str:
    """Answer a message with its own text."""
    await trio.sleep(0.1)
    return text


@attrs.define
class Hooked:
    """The hooks, a client that delivers, and what the replies arrive at."""

    client: httpx2.AsyncClient
    durable: DurableLanes
    chats: Chats

    async def deliver(self, **request: Any) -> httpx2.Response:
        """Deliver, and wait until no reply is under way."""
        response = await self.client.post(**request)
        while await self.durable.jobs(states=OPEN):  # noqa: ASYNC110
            await trio.sleep(1)
        return response

    async def failed(self) -> list[str]:
        """Why jobs have failed, in their order."""
        ended = (DurableState.FAILED, DurableState.DEAD)
        return [str(job.error) for job in await self.durable.jobs(states=ended)]


@asynccontextmanager
async def hooked(
    answer: Callable[[str, str], Awaitable[str]] = echo,
    store: Store | None = None,
    chats: Chats | None = None,
    grace: float = 30.0,
) -> AsyncIterator[Hooked]:
    chats = Chats() if chats is None else chats
    transport = httpx2.MockTransport(chats.answer)
    async with httpx2.AsyncClient(transport=transport) as replies:
        hooks = Hooks(answer, replies)
        opening = open_durable_lanes(store or MemoryStore(), {"reply": hooks.reply}, grace=grace)
        async with opening as durable:
            hooks.durable = durable
            receive = guarded(hooks.receive, dict, error)
            app = Starlette(routes=[Route("/hooks/{chat}", receive, methods=["POST"])])
            over = httpx2.ASGITransport(app)
            async with httpx2.AsyncClient(transport=over, base_url="http://127.0.0.1/") as client:
                yield Hooked(client, durable, chats)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for name in APIS:
        monkeypatch.delenv(f"{name.upper()}_API", raising=False)


# ---- deliveries


async def test_deliveries_are_acknowledged_at_once_and_answered_once_and_in_order(
    autojump_clock: MockClock,
) -> None:
    async def answer(session: str, text: str) -> str:
        await trio.sleep(10 - float(text.split()[1]))  # a later one would be faster
        return text

    async with hooked(answer) as here:
        for number in range(5):
            for _ in range(2):  # Slack delivers again what it thinks was lost
                event = said(f"number {number}", ts=f"{number}.1")
                response = await here.client.post(**slack(event, number))
                assert response.json() == {"ok": True}
        for _ in range(2):
            assert (await here.client.post(**telegram(1, "a 1"))).json() == {"ok": True}
            option = {"name": "question", "type": 3, "value": "b 1"}
            assert (await here.client.post(**discord(command(option)))).json() == {"type": 5}
        assert trio.current_time() < 1
        await here.deliver(**slack({"type": "reaction_added"}))
    by_path = {
        path: [r[2] for r in here.chats.replies if r[1] == path]
        for _, path, _ in here.chats.replies
    }
    assert by_path == {
        "/api/chat.postMessage": [f"number {number}" for number in range(5)],
        "/bot123:abc/sendMessage": ["a 1"],
        "/api/v10/webhooks/app/tok/messages/@original": ["b 1"],
    }
    assert {"channel": "C1", "thread_ts": "1.5", "text": "number 0"} in here.chats.bodies
    assert {"chat_id": 77, "text": "a 1"} in here.chats.bodies


async def test_what_is_not_signed_is_refused(autojump_clock: MockClock) -> None:
    async with hooked() as here:
        old = {"x-slack-request-timestamp": "1531420618", "x-slack-signature": "v0=5"}
        refused: list[dict[str, Any]] = [
            {"url": "hooks/slack", "json": {"type": "x"}},
            {"url": "hooks/slack", "content": b"{}", "headers": old},
            slack(said("hello"), stamp="²".encode("latin-1")),
            slack(said("hello"), stamp=b"9" * 5_000),
            slack(said("hello"), stamp=b"1e9"),
            telegram(1, secret="wrong"),
            discord({"type": 1}, stamp="5"),
        ]
        for request in refused:
            assert (await here.client.post(**request)).status_code == 401, request
        assert (await here.client.post("hooks/irc", json={})).status_code == 404
        assert (await here.deliver(**slack(5))).status_code == 400
    assert here.chats.replies == []


@pytest.mark.parametrize(
    "event",
    [
        {"type": "reaction_added", "user": "U1", "item": {}},
        said("hello", bot_id="B1"),
        said("<@U1> has joined the channel", subtype="channel_join"),
        {"type": "message", "channel": "C1", "ts": "1.1", "subtype": "message_changed",
         "hidden": True, "message": {"text": "x", "user": "U1"}, "previous_message": {}},
        said("hello", subtype="message_changed"),
        {"type": "message", "channel": "C1", "ts": "1.1", "subtype": "message_deleted",
         "hidden": True, "deleted_ts": "1.0"},
        {"type": "message", "channel": "C1", "ts": "1.1", "user": "U1", "files": [{}],
         "subtype": "file_share"},
        {"type": "message", "channel": "C1", "ts": "1.1", "text": "hello"},
        said(""),
    ],
)  # fmt: skip
async def test_an_event_of_slack_that_is_no_question_is_acknowledged_and_answered_by_nothing(
    autojump_clock: MockClock, event: dict[str, Any]
) -> None:
    async with hooked() as here:
        assert (await here.deliver(**slack(event))).status_code == 200
    assert here.chats.replies == []


async def test_challenges_and_pings_are_answered(autojump_clock: MockClock) -> None:
    async with hooked() as here:
        challenge = slack(None, type="url_verification", challenge="3eZb")
        assert (await here.deliver(**challenge)).json() == {"challenge": "3eZb"}
        assert (await here.deliver(**discord({"type": 1}))).json() == {"type": 1}


async def test_one_message_of_slack_that_comes_as_two_events_is_answered_once(
    autojump_clock: MockClock,
) -> None:
    async with hooked() as here:
        mention = said("<@BOT> hello", type="app_mention")
        assert (await here.deliver(**slack(mention, 1))).status_code == 200
        assert (await here.deliver(**slack(said("<@BOT> hello"), 2))).status_code == 200
        # also if the two differ: the first counts
        assert (await here.deliver(**slack(said("<@BOT> hello!"), 3))).status_code == 200
    assert here.chats.texts == ["<@BOT> hello"]


@pytest.mark.parametrize(
    ("more", "texts"),
    [
        ({"from": None, "sender_chat": {"id": -5}}, ["hello"]),  # an anonymous administrator
        ({"text": None, "photo": [{}], "caption": "hello"}, ["hello"]),
        ({"text": None, "photo": [{}]}, [NO_TEXT]),
        ({"text": None, "sticker": {}}, [NO_TEXT]),
        ({"text": None, "photo": [{}], "media_group_id": "1"}, []),  # another one has the caption
        ({"text": None, "photo": [{}], "chat": {"id": 77, "type": "group"}}, []),
        ({"text": None, "new_chat_members": [{}]}, []),
        ({"from": {"id": 1, "is_bot": True}}, []),
    ],
)
async def test_each_message_of_telegram_that_is_for_the_bot_has_one_reply(
    autojump_clock: MockClock, more: dict[str, Any], texts: list[str]
) -> None:
    async with hooked() as here:
        assert (await here.deliver(**telegram(1, **more))).status_code == 200
        edit = {"update_id": 2, "edited_message": {"text": "hello"}}
        assert (await here.deliver(**telegram(2) | {"json": edit})).status_code == 200
    assert here.chats.texts == texts


async def test_posts_of_channels_and_messages_to_a_business_are_answered(
    autojump_clock: MockClock,
) -> None:
    sessions: list[str] = []

    async def answer(session: str, text: str) -> str:
        sessions.append(session)
        return text

    async with hooked(answer) as here:
        post = {"chat": {"id": -9, "type": "channel"}, "text": "post"}
        customer = {"id": 7, "is_bot": False}
        business = {"chat": {"id": 7, "type": "private"}, "business_connection_id": "bc"}
        bodies: list[dict[str, Any]] = [
            {"channel_post": post},
            {"business_message": business | {"from": customer, "text": "a customer"}},
            {"business_message": business | {"from": {"id": 1}, "text": "the owner"}},
            {"business_message": business | {"from": customer, "voice": {}}},
        ]
        for number, body in enumerate(bodies):
            update = {"json": body | {"update_id": number}}
            assert (await here.deliver(**telegram(0) | update)).status_code == 200
    assert here.chats.bodies == [
        {"chat_id": -9, "text": "post"},
        {"chat_id": 7, "business_connection_id": "bc", "text": "a customer"},
        {"chat_id": 7, "business_connection_id": "bc", "text": NO_TEXT},
    ]
    assert sessions == ["telegram--9-0", "telegram-7-0-bc"]


async def test_a_direct_channel_of_slack_is_one_session(autojump_clock: MockClock) -> None:
    sessions: list[str] = []

    async def answer(session: str, text: str) -> str:
        sessions.append(session)
        return text

    def direct(number: int, **more: Any) -> Any:
        event = said("hello", ts=f"{number}.0", channel="D1", channel_type="im", **more)
        return slack({n: v for n, v in event.items() if v is not None}, number)

    async with hooked(answer) as here:
        await here.deliver(**direct(1, thread_ts=None))
        await here.deliver(**direct(2, thread_ts=None))
        await here.deliver(**direct(3, thread_ts="1.0"))
        picture = said("", ts="4.0", channel="D1", channel_type="im", files=[{}], thread_ts="1.0")
        await here.deliver(**slack(picture | {"subtype": "file_share"}, 4))
        await here.deliver(**slack(said("", ts="5.0", files=[{}]), 5))  # in a channel: not asked
        await here.deliver(**slack(said("first", ts="6.0", thread_ts="6.0"), 6))
        await here.deliver(**slack(said("second", ts="7.0", thread_ts="7.0"), 7))
    assert sessions == ["slack-D1"] * 3 + ["slack-C1-6.0", "slack-C1-7.0"]
    assert [body.get("thread_ts") for body in here.chats.bodies] == [
        None, None, "1.0", "1.0", "6.0", "7.0",
    ]  # fmt: skip
    assert here.chats.texts == ["hello"] * 3 + [NO_TEXT, "first", "second"]


@pytest.mark.parametrize(
    "fault", [httpx2.InvalidURL("SECRET"), httpx2.UnsupportedProtocol("SECRET"),
              httpx2.LocalProtocolError("SECRET")],
)  # fmt: skip
async def test_a_reply_whose_request_cannot_be_made_did_not_arrive(
    fault: Exception, autojump_clock: MockClock
) -> None:
    async with hooked() as here:
        here.chats.answers.append(fault)
        await here.deliver(**telegram(1))
        (why,) = await here.failed()
    assert "was not sent" in why
    assert "SECRET" not in why


async def test_a_reply_in_telegram_goes_to_a_topic_and_not_to_another_thread(
    autojump_clock: MockClock,
) -> None:
    async with hooked() as here:
        await here.deliver(**telegram(1, message_thread_id=3, is_topic_message=True))
        await here.deliver(**telegram(2, message_thread_id=3))
    assert [body.get("message_thread_id") for body in here.chats.bodies] == [3, None]


async def test_a_command_of_discord_has_the_values_of_its_options_or_its_name_as_text(
    autojump_clock: MockClock,
) -> None:
    inner = {"name": "question", "type": 3, "value": "why?"}
    async with hooked() as here:
        for id, options in enumerate(([], [{"name": "now", "type": 1, "options": [inner]}])):
            response = await here.deliver(**discord(command(*options, id=str(id))))
            assert response.json() == {"type": 5}
    assert here.chats.texts == ["/ask", "why?"]


# ---- replies


BROKEN = httpx2.RemoteProtocolError("Server disconnected without sending a response.")
MAY_HAVE_ARRIVED = [
    BROKEN, httpx2.ReadTimeout("slow"), httpx2.WriteError("broken"), (500, {}, {}), (502, {}, {}),
    (200, {}, {"ok": False, "error": "fatal_error"}), (200, {}, "no object"),
]  # fmt: skip


@pytest.mark.parametrize("answer", MAY_HAVE_ARRIVED)
async def test_a_reply_that_may_have_arrived_is_not_sent_again_until_a_person_wants_it(
    autojump_clock: MockClock, answer: Any
) -> None:
    async with hooked() as here:
        here.chats.answers = [answer]
        await here.deliver(**slack(said("hello")))
        assert here.chats.texts == ["hello"]
        (error,) = await here.failed()
        assert "may have arrived" in error
        assert await here.durable.requeue(failed=True, handler="reply") == 1
        await here.deliver(**slack({"type": "reaction_added"}))
        assert here.chats.texts == ["hello", "hello"]
        assert await here.failed() == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, {}, {"ok": False, "error": "channel_not_found"}), "channel_not_found"),
        ((403, {}, {"ok": False, "description": "Forbidden: bot was blocked"}), "blocked"),
    ],
)
async def test_a_reply_that_the_service_refuses_has_failed_with_the_reason(
    autojump_clock: MockClock, answer: Any, reason: str
) -> None:
    async with hooked() as here:
        here.chats.answers = [answer]
        await here.deliver(**slack(said("hello")))
        (error,) = await here.failed()
        assert reason in error
        assert here.chats.texts == ["hello"]
        await here.durable.requeue(failed=True, handler="reply")
        await here.deliver(**slack({"type": "reaction_added"}))
        assert here.chats.texts == ["hello", "hello"]


async def test_a_reply_that_is_refused_for_now_is_sent_when_the_service_says(
    autojump_clock: MockClock,
) -> None:
    limited = {"ok": False, "error": "ratelimited"}
    async with hooked() as here:
        here.chats.answers = [(429, {"Retry-After": "30"}, limited)] * 5 + [(503, {}, {})]
        await here.deliver(**slack(said("hello")))
        assert await here.failed() == []
    assert here.chats.texts == ["hello"] * 7
    pauses = [b - a for a, b in zip(here.chats.times, here.chats.times[1:], strict=False)]
    assert pauses == pytest.approx([30] * 5 + [AGAIN_SECONDS], abs=0.1)


async def test_a_reply_of_which_nothing_was_sent_is_sent_again(autojump_clock: MockClock) -> None:
    async with hooked() as here:
        here.chats.answers = [httpx2.ConnectError("refused")]
        await here.deliver(**slack(said("hello")))
        assert await here.failed() == []
    assert here.chats.texts == ["hello"]


async def test_a_drain_waits_for_the_answer_to_a_reply(autojump_clock: MockClock) -> None:
    chats, store = Chats(), MemoryStore()
    chats.delay = 5.0
    async with hooked(store=store, chats=chats, grace=0) as here:
        await here.client.post(**slack(said("hello")))
        await trio.sleep(1)
    async with hooked(store=store, chats=chats) as here:
        await here.deliver(**slack({"type": "reaction_added"}))
        assert await here.failed() == []
    assert chats.texts == ["hello"]


async def test_a_long_reply_goes_in_parts_each_of_which_is_sent_once(
    autojump_clock: MockClock,
) -> None:
    async def answer(session: str, text: str) -> str:
        return "\n".join(f"line {number}" for number in range(1_000))

    whole = await answer("", "")
    cases = [(slack(said("x")), 4_000), (telegram(1), 4_096), (discord(command()), 2_000)]
    for request, largest in cases:
        async with hooked(answer) as here:
            here.chats.answers = [(200, {}, {"ok": True}), (429, {"Retry-After": "1"}, {})]
            await here.deliver(**request)
            sent = [one for place, one in enumerate(here.chats.texts) if place != 1]
            assert len(sent) > 2
            assert "\n".join(sent) == whole
            assert all(len(one) <= largest for one in sent)
            assert here.chats.texts[1] == sent[1]  # refused, and sent again
            assert await here.failed() == []
    ways = [(method, path.rpartition("/")[2]) for method, path, _ in here.chats.replies]
    assert ways[0] == ("PATCH", "@original")
    assert set(ways[1:]) == {("POST", "tok")}


async def test_a_part_that_may_have_arrived_is_the_first_that_a_person_sends(
    autojump_clock: MockClock,
) -> None:
    async def answer(session: str, text: str) -> str:
        return "\n\n".join([letter * 3_000 for letter in "abc"])

    async with hooked(answer) as here:
        here.chats.answers = [(200, {}, {"ok": True}), BROKEN]
        await here.deliver(**slack(said("hello")))
        assert [text[0] for text in here.chats.texts] == ["a", "b"]
        await here.durable.requeue(failed=True, handler="reply")
        await here.deliver(**slack({"type": "reaction_added"}))
        assert [text[0] for text in here.chats.texts] == ["a", "b", "b", "c"]


class Run:
    """A run that finds what an earlier one has left."""

    session = "s"

    def __init__(self, state: str, crashes: int) -> None:
        self.checkpoint_data = {"parts": ["a", "b"], "next": 0, "is": state}
        self.crashes = crashes

    async def checkpoint(self, data: Any) -> None:
        self.checkpoint_data = data


@pytest.mark.parametrize(
    ("state", "crashes", "is_sent"),
    [
        (READY, 1, True),  # it was refused, or the part before it was taken
        (BEGUN, 1, False),  # the process died
        (BEGUN, 0, False),  # the run was taken back
        (FAILED, 0, True),  # a person has queued it again
        (FAILED, 1, False),  # the process died before the job had failed
    ],
)
async def test_a_part_that_an_earlier_run_has_begun_is_for_a_person_to_send(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    crashes: int,
    is_sent: bool,
) -> None:
    chats = Chats()
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(chats.answer)) as client:
        for chat, to in (
            ("slack", {}), ("telegram", {}), ("discord", {"application": "a", "token": "t"}),
        ):  # fmt: skip
            run = Run(state, crashes)
            monkeypatch.setattr("examples.deliveries.hooks.current_job", lambda run=run: run)
            reply = Hooks(echo, client).reply({"chat": chat, "to": to, "text": "x"})
            chats.replies.clear()
            if is_sent or chat == "discord":  # which replaces what it has
                await reply
                assert chats.texts == ["a", "b"]
                continue
            with pytest.raises(NoRetry, match="may have arrived"):
                await reply
            assert run.checkpoint_data["is"] == FAILED
            assert chats.texts == []


async def test_the_first_part_in_discord_replaces_itself_and_the_others_do_not(
    autojump_clock: MockClock,
) -> None:
    async def answer(session: str, text: str) -> str:
        return "a" * 2_000 + "b" * 2_000

    async with hooked(answer) as here:
        here.chats.answers = [BROKEN, (200, {}, {}), BROKEN]
        await here.deliver(**discord(command()))
        assert [text[0] for text in here.chats.texts] == ["a", "a", "b"]
        assert len(await here.failed()) == 1


def test_a_text_is_cut_at_paragraphs_lines_and_words_and_never_in_a_character() -> None:
    assert parts_of("", 10) == parts_of(" \n", 10) == []
    assert parts_of("short", 5) == ["short"]
    assert parts_of("one two three", 8) == ["one two", "three"]
    assert parts_of("one\n\ntwo three", 9) == ["one", "two three"]
    assert parts_of("one two\n    code", 12) == ["one two", "    code"]
    assert parts_of("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
    assert parts_of("\U0001f600" * 7, 5) == ["\U0001f600" * 2] * 3 + ["\U0001f600"]
    assert parts_of("a" + "\n" * 30 + "b", 10) == ["a", "b"]
