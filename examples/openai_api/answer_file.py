"""The answer to an `Idempotency-Key` in a file, for other processes and for those that come later.

The process that runs the request has the lock of the file. The system takes it back when the
process dies, and then the next request with the key runs.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Final

import attrs
import trio
from starlette.types import Message

logger: Final = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.1  # between two looks at what another process runs


@attrs.define
class AnswerFile:
    """The file of one key: a line with what is asked, and one with the answer."""

    path: Path
    _file: int = -1  # open, and locked, while the request runs here

    async def claim(self, body: str) -> tuple[str, list[Message]]:
        """Wait while another process runs the request. Return what was asked, and the answer.

        If there is no answer to this ``body``, its request is to run here, until `release`.

        Args:
          body: a digest of what is asked.

        Raises:
          OSError: if the file cannot be written.
        """
        import fcntl  # this is for POSIX alone

        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                asked, answer = self._read(body)
                if answer or asked != body:
                    return asked, answer
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                asked, answer = self._read(body)  # as it is with the lock
                if os.path.samestat(os.fstat(file), self.path.stat()) and not answer:
                    os.ftruncate(file, 0)  # a process that died may have left a part of an answer
                    os.write(file, f"{body}\n".encode())
                    self._file, file = file, -1
                    return body, []
            except FileNotFoundError:  # a request that was refused has deleted it
                pass
            except BlockingIOError:
                await trio.sleep(LOOK_SECONDS)
            finally:
                if file >= 0:
                    os.close(file)

    def _read(self, body: str) -> tuple[str, list[Message]]:
        """Return what was asked, and the answer; ``body`` is asked where nothing was."""
        asked, *answers = self.path.read_text("utf-8").split("\n")[:-1] or [body]  # whole lines
        if not answers:
            return asked, []
        answer = json.loads(answers[0])
        headers = [(name.encode("latin-1"), value.encode("latin-1"))
                   for name, value in answer["headers"]]  # fmt: skip
        head = {"type": "http.response.start", "status": answer["status"], "headers": headers}
        return asked, [head, {"type": "http.response.body", "body": answer["body"].encode()}]

    def release(self, messages: list[Message]) -> None:
        """Keep the answer, and let others go on; without messages the next request runs anew."""
        if self._file < 0:
            return
        try:
            if messages:
                os.write(self._file, _line(messages))
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:  # for example a full disk
            logger.error("the answer to a key is known in this process alone: %s", error)
        finally:
            os.close(self._file)
            self._file = -1


def _line(messages: list[Message]) -> bytes:
    """Return the line of an answer, which an endpoint has sent in these messages."""
    head, *parts = messages
    headers = [[name.decode("latin-1"), value.decode("latin-1")]
               for name, value in head["headers"]]  # fmt: skip
    body = b"".join(part.get("body", b"") for part in parts).decode()
    return json.dumps({"status": head["status"], "headers": headers, "body": body}).encode() + b"\n"


def forget_older(folder: Path, age: float) -> None:
    """Delete the answers that are older than ``age`` seconds."""
    for path in folder.glob("*"):
        if time.time() - path.stat().st_mtime > age:
            path.unlink(missing_ok=True)
