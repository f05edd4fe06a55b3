"""The answer to an `Idempotency-Key` in a file, for other processes and for those that come later.

The process that runs the request has the lock of the file. The system takes it back when the
process dies, and then the next request with the key runs.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Final

import attrs
import trio
from starlette.types import Message

LOOK_SECONDS: Final = 0.1  # between two looks at what another process runs


@attrs.define
class AnswerFile:
    """The file of one key."""

    path: Path
    _file: int = -1  # open, and locked, while the request runs here

    async def claim(self, body: str) -> tuple[str, list[Message]]:
        """Wait while another process runs the request. Return what was asked, and the answer.

        If there is no answer to this ``body``, its request is to run here, until `release`.

        Args:
          body: a digest of what is asked.
        """
        import fcntl  # this is for POSIX alone

        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                asked, *answer = self.path.read_text("utf-8").splitlines() or [""]
                if answer or asked not in ("", body):
                    return asked, _messages(answer)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lines = self.path.read_text("utf-8").splitlines()  # as they are with the lock
                if self._is_at_path(file) and lines[1:] == []:
                    if not lines:
                        os.write(file, f"{body}\n".encode())
                    self._file, file = file, -1
                    return body, []
            except FileNotFoundError:  # a request that failed has deleted it
                pass
            except BlockingIOError:
                await trio.sleep(LOOK_SECONDS)
            finally:
                if file >= 0:
                    os.close(file)

    def _is_at_path(self, file: int) -> bool:
        return os.path.samestat(os.fstat(file), self.path.stat())

    def release(self, messages: list[Message]) -> None:
        """Keep the answer, and let others go on; without messages the next request runs anew."""
        if self._file < 0:
            return
        if messages:
            head, parts = messages[0], [message.get("body", b"") for message in messages[1:]]
            headers = [[name.decode("latin-1"), value.decode("latin-1")]
                       for name, value in head["headers"]]  # fmt: skip
            answer = {
                "status": head["status"],
                "headers": headers,
                "body": b"".join(parts).decode(),
            }
            os.write(self._file, json.dumps(answer).encode() + b"\n")
        else:
            self.path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = -1


def _messages(lines: list[str]) -> list[Message]:
    """Return the answer of a file as an endpoint sends it."""
    if not lines:
        return []
    answer = json.loads(lines[0])
    headers = [(name.encode("latin-1"), value.encode("latin-1"))
               for name, value in answer["headers"]]  # fmt: skip
    head = {"type": "http.response.start", "status": answer["status"], "headers": headers}
    return [head, {"type": "http.response.body", "body": answer["body"].encode()}]


def forget_older(folder: Path, age: float) -> None:
    """Delete the answers that are older than ``age`` seconds."""
    for path in folder.glob("*"):
        if time.time() - path.stat().st_mtime > age:
            path.unlink(missing_ok=True)
