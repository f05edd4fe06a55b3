"""Lines that people can paste: one for each kind of client."""

from __future__ import annotations

import argparse
import socket
import sys

PASTE = """try it:
  curl {url}responses -H 'Content-Type: application/json' -d '{{"input": "hello"}}'
  python -c "from openai import OpenAI; print(OpenAI(base_url='{url}', api_key='x')\
.responses.create(input='hello').output_text)"
  node -e "import('openai').then(async ({{OpenAI}}) => console.log((await new OpenAI({{\
baseURL: '{url}', apiKey: 'x'}}).responses.create({{input: 'hello'}})).output_text))\""""


def announce(listener: socket.socket, options: argparse.Namespace) -> None:
    """Say where the gateway is, and what people may paste."""
    url = "http://{}:{}/v1".format(*listener.getsockname())
    name = options.model if options.upstream else "built-in"
    line = f"the gateway is at {url} (model: {name}); Ctrl-C ends"
    print(line, PASTE.format(url=f"{url}/"), sep="\n", file=sys.stderr, flush=True)
