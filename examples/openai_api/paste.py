"""Lines that people can paste: one for each kind of client."""

from __future__ import annotations

import argparse
import socket
import sys

PASTE = """try it:
  curl {url}responses -H 'Content-Type: application/json' -d '{{"input": "hello"}}'
  python -c "from openai import OpenAI; print(OpenAI(base_url='{url}', api_key='x')\
.responses.create(input='hello').output_text)"
  python -c "from anthropic import Anthropic; print(Anthropic(base_url='{root}', api_key='x')\
.messages.create(model='any', max_tokens=99, messages=[{{'role': 'user', 'content': 'hello'}}])\
.content[0].text)"
  node -e "import('openai').then(async ({{OpenAI}}) => console.log((await new OpenAI({{\
baseURL: '{url}', apiKey: 'x'}}).responses.create({{input: 'hello'}})).output_text))\""""


def announce(listener: socket.socket, options: argparse.Namespace) -> None:
    """Say where the gateway is, and what people may paste."""
    root = "http://{}:{}".format(*listener.getsockname())
    url = f"{root}/v1"
    name = options.model if options.upstream else "built-in"
    line = f"the gateway is at {url} (model: {name}); Ctrl-C ends"
    print(line, PASTE.format(url=f"{url}/", root=root), sep="\n", file=sys.stderr, flush=True)
