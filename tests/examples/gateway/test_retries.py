"""The retries of `openai` with an `Idempotency-Key`, over killed gateways: no question twice."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import openai
import pytest

from tests.support.chaos import number
from tests.support.programs import PATIENCE

from .gateways import program
from .test_background import said

pytestmark = [pytest.mark.real_processes]

CLIENTS = 12


@pytest.mark.slow
def test_no_question_is_asked_twice_over_kills_of_the_gateway(tmp_path: Path) -> None:
    rng = random.Random(1)

    def life(process: subprocess.Popen[str]) -> None:
        time.sleep(rng.uniform(0.1, 2.0))

    _ask_over_kills(tmp_path, number("KILLS_GATEWAY", 8), life)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="several processes need Linux")
def test_over_kills_of_the_parent_no_answer_fails_though_its_store_is_away_besides(
    tmp_path: Path,
) -> None:
    rng = random.Random(2)

    def life(process: subprocess.Popen[str]) -> None:
        """The parent, which owns the store, stands still for a while: often beyond patience."""
        time.sleep(rng.uniform(0.5, 3.0))
        process.send_signal(signal.SIGSTOP)
        time.sleep(rng.uniform(0.0, 10.0))
        if rng.random() < 0.7:  # else it dies as it stands
            process.send_signal(signal.SIGCONT)
            time.sleep(rng.uniform(0.0, 3.0))

    _ask_over_kills(tmp_path, number("KILLS_GATEWAY", 2), life, "--processes", "2")


def _ask_over_kills(
    folder: Path, kills: int, life: Callable[[subprocess.Popen[str]], None], *options: str
) -> None:
    """Ask, and have each question answered once and in order, while gateways are killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked: dict[str, list[str]] = defaultdict(list)
    stop = Event()

    def ask(place: int) -> None:
        name = f"client-{place}"
        url = f"http://127.0.0.1:{port}/v1"
        sdk = openai.OpenAI(base_url=url, api_key="any", timeout=PATIENCE, max_retries=100)
        while not stop.is_set():
            text = f"question {len(asked[name])} of {name}"
            asked[name].append(text)
            more: dict[str, Any] = {"extra_headers": {"Idempotency-Key": text}}
            more |= {"input": text, "conversation": name}
            if place % 2:
                assert sdk.responses.create(**more).status == "completed"
                continue
            while True:  # a stream that breaks is not repeated by the client itself
                try:
                    events = list(sdk.responses.create(**more, stream=True))
                except (openai.APIConnectionError, httpx2.TransportError):
                    continue
                assert [event.sequence_number for event in events] == [*range(len(events))]
                if events[-1].type == "response.completed":
                    break

    command = ("examples.gateway", "--port", str(port), "--limit", "12", "--grace", "0")
    command = (*command, "--durable", str(folder), "--word-delay", "0.05", *options)
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask, place) for place in range(CLIENTS)]
        try:
            for _ in range(kills):
                with program(*command, announces="the gateway is at ") as (process, _):
                    life(process)
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
        finally:
            stop.set()
        with program(*command, announces="the gateway is at ") as (_, url):
            for one in clients:
                one.result()
            with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
                for name, texts in asked.items():
                    assert said(client, name)[::2] == texts
    assert all(asked.values())  # a busy machine answers few questions between two kills
