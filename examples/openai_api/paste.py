"""Lines that people can paste: one for each kind of client."""

from __future__ import annotations

PASTE = """try it:
  curl {url}responses -H 'Content-Type: application/json' -d '{{"input": "hello"}}'
  python -c "from openai import OpenAI; print(OpenAI(base_url='{url}', api_key='x')\
.responses.create(input='hello').output_text)"
  node -e "import('openai').then(async ({{OpenAI}}) => console.log((await new OpenAI({{\
baseURL: '{url}', apiKey: 'x'}}).responses.create({{input: 'hello'}})).output_text))\""""
