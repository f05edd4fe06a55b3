"""No secret comes out: not in an answer, a log, a store, a file, a table, or on the terminal.

Each variable and option of the source is in a table here: what takes a secret has a mark put in,
and each kind of failure is made.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from examples.chat_agent.keys import SecretError, hide, hide_in, secret, what, without_secrets
from tests.support.programs import PATIENCE, ROOT
from trio_lanes.command import main as trio_lanes_command

from .deliveries import SECRETS, command, discord, said, slack, telegram

MARK = "MaRkEd"  # in each secret
SOURCES = (
    "examples/gateway", "examples/gateway_processes", "examples/deliveries",
    "examples/chat_agent", "examples/openai_api", "examples/anthropic_api", "trio_lanes",
)  # fmt: skip
# what takes a secret, and the case below that puts a mark in
TAKES_A_SECRET = {
    "OPENAI_API_KEY": "gateway", "OPENAI_BASE_URL": "chat agent",
    "*_SECRET": "gateway", "*_TOKEN": "gateway", "*_API": "gateway",
    "--upstream": "gateway", "--mcp": "gateway", "--store": "store", "TRIO_LANES_STORE": "store",
    "TRIO_LANES_MONITOR_KEY": "top", "--header": "top",
    "GATEWAY_ARGUMENTS": "store",  # has --store and --upstream of the parent
}  # fmt: skip
TAKES_NONE = {
    "OPENAI_MODEL", "TERM", "NO_COLOR", "USER", "--port", "--model", "--durable", "--processes",
    "--limit", "--waiting", "--rpm", "--word-delay", "--turn-timeout", "--tool-timeout",
    "--gate-timeout", "--connect-timeout", "--silence-timeout", "--grace", "--users", "--seed",
    "--steps", "--web", "--after", "--aging", "--all", "--by", "--cancel-grace", "--crash",
    "--error", "--failed", "--for", "--grant", "--handler", "--json", "--kill-after", "--limits",
    "--line", "--log-level", "--max-crashes", "--max-waiting", "--member", "--new", "--no-rate",
    "--of", "--on-dead", "--page", "--rate", "--reason", "--reload", "--remove", "--repair",
    "--reserve", "--reset", "--result-ttl", "--served", "--session", "--set", "--since",
    "--standstill-after", "--state", "--traceback", "--until", "--weight",
}  # fmt: skip
OPTION = re.compile(r"--[a-z][a-z-]+")
VARIABLE = re.compile(r"[A-Z*][A-Z_*]{2,}")


def test_each_variable_and_option_is_known_to_take_a_secret_or_none() -> None:
    found: set[str] = set()
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            found |= {*_taken(tree), *_options(tree)}
    unknown = found - TAKES_A_SECRET.keys() - TAKES_NONE
    assert not unknown, f"say whether they take a secret, and add a case: {sorted(unknown)}"
    assert {*TAKES_A_SECRET.values()} == {"gateway", "chat agent", "store", "top"}


def _taken(tree: ast.Module) -> set[str]:
    """The variables of the environment that a module reads."""
    constants = {
        ast.unparse(node.target): node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant)
    }
    constants["MONITOR_KEY"] = "TRIO_LANES_MONITOR_KEY"
    names: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            if ast.unparse(node.func) in ("os.environ.get", "os.getenv", "secret"):
                names.append(node.args[0])
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            names.append(node.slice)
        elif isinstance(node, ast.Compare) and "os.environ" in map(ast.unparse, node.comparators):
            names.append(node.left)
        if isinstance(node, ast.keyword) and node.arg == "envvar":
            names.append(node.value)
    return {found for name in names if VARIABLE.fullmatch(found := _text(name, constants))}


def _text(name: ast.expr, constants: Mapping[str, Any]) -> str:
    if isinstance(name, ast.Constant):
        return str(name.value)
    if isinstance(name, ast.JoinedStr):
        return "".join(str(p.value) if isinstance(p, ast.Constant) else "*" for p in name.values)
    return str(constants.get(ast.unparse(name), ""))


def _options(tree: ast.Module) -> Iterator[str]:
    """The options that a module adds to a parser."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for one in [inner for argument in node.args for inner in ast.walk(argument)]:
                if isinstance(one, ast.Constant) and OPTION.fullmatch(str(one.value)):
                    yield str(one.value)


# ---- the gateway


class Failing(BaseHTTPRequestHandler):
    """A server that says all that it was sent in each of its errors; the model says which."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None: ...

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        # what is secret in front, since texts are cut off
        echo = f"{self.headers.get('authorization')} {self.path}"
        kind = re.search(rb"kind-(\w+)", body)
        error = {"error": {"message": echo, "code": "no", "param": echo}, "description": echo}
        status = int(kind[1]) if kind and kind[1].isdigit() else 500
        if kind and kind[1] in (b"cut", b"chunk", b"strange"):
            status = 200
        raw = json.dumps(error).encode()
        self.send_response(status)
        if status == 200:
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            raw = {
                b"cut": b"data: " + raw[:20],
                b"chunk": b"data: " + raw,
                b"strange": b"data: " + json.dumps({echo: echo}).encode(),
            }[kind[1] if kind else b""] + b"\n\n"
        else:
            self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
        self.close_connection = status == 200

    do_GET = do_PATCH = do_POST


@contextmanager
def failing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


KINDS = (400, 401, 403, 404, 413, 422, 429, 500, 503, "cut", "chunk", "strange")
ASKS: Any = {
    "/v1/responses": lambda text: {"input": text},
    "/v1/chat/completions": lambda t: {"model": "m", "messages": [{"role": "user", "content": t}]},
    "/v1/messages": lambda text: {
        "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}],
    },
}  # fmt: skip


def run(
    folder: Path, *options: str, env: Mapping[str, str], arguments: tuple[str, ...]
) -> tuple[subprocess.Popen[bytes], Path]:
    told = folder / "told.txt"
    with open(told, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments, *options], cwd=ROOT, stdout=out, stderr=out,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1", **env},
        )  # fmt: skip
    return process, told


def everything_in(folder: Path) -> str:
    """All that is in files, and in tables of databases, as text."""
    found = [path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file()]
    for path in folder.rglob("*.db"):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
            for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
                found.append(str(base.execute(f'SELECT * FROM "{table}"').fetchall()))
        base.close()
    return "\n".join(found)


@pytest.mark.real_processes
@pytest.mark.parametrize(
    ("reached", "user"), [(True, ""), (True, f"me:{MARK}-password@"), (False, f"me:{MARK}-pass@")]
)
def test_no_secret_of_the_gateway_comes_out_however_it_fails(
    reached: bool, user: str, tmp_path: Path
) -> None:
    env = {
        "OPENAI_API_KEY": f"sk-{MARK}-of-the-upstream\r\n",
        "SLACK_SECRET": SECRETS["SLACK_SECRET"], "SLACK_TOKEN": f"xoxb-{MARK}-slack\n",
        "TELEGRAM_SECRET": f"hook-{MARK}-secret\n", "TELEGRAM_TOKEN": f"123:{MARK}telegram\n",
        "DISCORD_SECRET": SECRETS["DISCORD_SECRET"], "DISCORD_TOKEN": f"{MARK}-of-discord",
    }  # fmt: skip
    folder = tmp_path / "durable"
    folder.mkdir()
    with failing() as server:
        where = server if reached else "127.0.0.1:1"
        at = f"http://{user}{where}"
        env |= {f"{chat}_API": f"{at}/{chat}" for chat in ("SLACK", "TELEGRAM", "DISCORD")}
        process, told = run(
            tmp_path, "--port", "0", "--grace", "0", "--durable", str(folder), "--waiting", "50",
            "--upstream", f"{at}/v1",
            env=env, arguments=("examples.gateway",),
        )  # fmt: skip
        answers: list[str] = []
        try:
            until = time.monotonic() + PATIENCE
            while not (url := re.search(r"gateway is at (\S+)/v1", told.read_text())):
                assert process.poll() is None, told.read_text()
                assert time.monotonic() < until
                time.sleep(0.05)
            with httpx2.Client(base_url=url[1], timeout=PATIENCE) as client:
                for kind in KINDS if reached else KINDS[:1]:
                    for path, body in ASKS.items():
                        asked = body(f"kind-{kind}")
                        for more in ({}, {"stream": True}):
                            reply = client.post(path, json=asked | more)
                            answers.append(f"{reply.headers}{reply.text}")
                body = {"input": "kind-500", "background": True, "conversation": "c"}
                id = client.post("/v1/responses", json=body).json()["id"]
                for hook in (
                    slack(said("kind-400"), 1),
                    telegram(1, "kind-404", secret=env["TELEGRAM_SECRET"].strip()),
                    telegram(2, "kind-500", secret="wrong"),
                    discord(command(id="9")),
                ):
                    reply = client.post(**hook)
                    answers.append(reply.text)
                time.sleep(1.0)
                answers.append(client.get(f"/v1/responses/{id}").text)
        finally:
            process.terminate()
            process.wait(PATIENCE)
    out = "\n".join([*answers, told.read_text(), everything_in(folder)])
    assert len(answers) > 5
    in_a_header = b64encode(user.removesuffix("@").encode()).decode() if user else MARK
    for shown in (MARK, in_a_header):
        assert shown not in out, out[max(0, out.index(shown) - 300) :][:600]


@pytest.mark.real_processes
@pytest.mark.parametrize("reached", [True, False])
def test_no_secret_of_a_tool_server_comes_out(reached: bool, tmp_path: Path) -> None:
    with failing() as server:
        where = server if reached else "127.0.0.1:1"
        url = f"http://me:{MARK}-password@{where}/mcp?key={MARK}-in-the-query"
        process, told = run(
            tmp_path, "--port", "0", "--mcp", f"x={url}", env={}, arguments=("examples.gateway",)
        )
        assert process.wait(PATIENCE) == 1
    assert "the server x cannot be reached" in told.read_text()
    assert MARK not in told.read_text(), told.read_text()


@pytest.mark.real_processes
@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "SLACK_TOKEN", "TELEGRAM_TOKEN", "TELEGRAM_SECRET"]
)
def test_a_secret_that_can_be_none_is_refused_at_the_start(name: str, tmp_path: Path) -> None:
    env = {name: f"sk-{MARK}\nand-{MARK}"}
    process, told = run(tmp_path, "--port", "0", env=env, arguments=("examples.gateway",))
    assert process.wait(PATIENCE) == 1
    assert name in told.read_text()
    assert MARK not in told.read_text()


@pytest.mark.real_processes
@pytest.mark.parametrize("url", ["http://me:{}@127.0.0.1:1/v1", "htp://me:{}@x", "http://me:{}@[x"])
def test_no_secret_of_the_chat_agent_comes_out(url: str, tmp_path: Path) -> None:
    env = {
        "OPENAI_BASE_URL": url.format(f"{MARK}-password"), "OPENAI_MODEL": "m",
        "OPENAI_API_KEY": f"sk-{MARK}-key\n",
    }  # fmt: skip
    process, told = run(
        tmp_path, "--users", "1", "--steps", "1", env=env, arguments=("examples.chat_agent",)
    )
    process.wait(PATIENCE)
    assert told.read_text()
    assert MARK not in told.read_text()


@pytest.mark.parametrize(
    "store",
    ["postgresql://me:{}@127.0.0.1:1/x", "postgresql:/me:{}@x", "valkey://me:{}@127.0.0.1:1",
     "valkey:/me:{}@x", "mysql://me:{}@x"],
)  # fmt: skip
def test_no_password_of_a_store_comes_out_of_a_command(
    store: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    named = store.format(f"{MARK}password")
    monkeypatch.setenv("TRIO_LANES_STORE", named)
    monkeypatch.setenv("TRIO_LANES_MONITOR_KEY", f"{MARK}-of-the-page")
    runs = [
        ["status"],
        ["health", "--store", named],
        ["top", f"http://127.0.0.1:1/?key={MARK}-of-the-page"],
        ["top", "http://127.0.0.1:1/", "--header", f"Authorization {MARK}-without-a-colon"],
        ["top", "http://127.0.0.1:1/", "--header", f"Authorization: {MARK}"],
    ]
    for arguments in runs:
        assert trio_lanes_command(arguments) != 0
        out, err = capfd.readouterr()
        assert err
        assert MARK not in out + err + caplog.text, err


@pytest.mark.real_processes
def test_no_password_of_a_store_comes_out_of_a_gateway(tmp_path: Path) -> None:
    named = f"postgresql://me:{MARK}password@127.0.0.1:1/x"
    process, told = run(
        tmp_path, "--port", "0", "--store", named, "--durable", str(tmp_path / "d"),
        env={}, arguments=("examples.gateway",),
    )  # fmt: skip
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:  # it waits for the server
        process.terminate()
        process.wait(PATIENCE)
    assert told.read_text()
    assert MARK not in told.read_text()


# ---- the one place


def test_a_secret_is_stripped_checked_and_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", f" {MARK}/of A".replace(" A", "-a") + " \r\n")
    assert secret("A_KEY") == f"{MARK}/of-a"
    assert secret("ANOTHER_KEY") == ""
    assert without_secrets(f"x{MARK}/of-a {MARK}%2Fof-a y") == "x*** *** y"
    for bad in ("two words", "two\nlines", "schlüssel", "a\x00b"):
        monkeypatch.setattr("os.environ", {"A_KEY": bad})
        with pytest.raises(SecretError, match=r"^A_KEY has a sign") as raised:
            secret("A_KEY")
        assert bad not in str(raised.value)


def test_what_stands_in_place_of_a_key_is_left_in_texts() -> None:
    hide("EMPTY")
    assert without_secrets("EMPTY answer") == "EMPTY answer"


def test_the_secrets_of_a_url_are_taken_out() -> None:
    hide_in(f"https://me:{MARK}%2F1@host/path?key={MARK}-query")
    for text in (f"{MARK}%2F1", f"{MARK}/1", f"{MARK}-query"):
        assert without_secrets(text) == "***"
    hide_in(f"http://me:{MARK}-none@[host")
    assert MARK not in what(ValueError(f"cannot read http://me:{MARK}-none@[host"))
    assert what(OSError()) == "OSError"
