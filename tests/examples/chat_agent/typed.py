"""What a person types, on virtual time."""

import trio

Line = str | float
FOREVER = 1e6  # virtual seconds: a chat that has not ended then never will


class Script:
    """Lines that a person types; a number is a pause of so many seconds before the next line.

    ``{prompt}`` in a line stands for the prompt that the person sees.
    """

    def __init__(self, *lines: Line) -> None:
        self._lines = iter(lines)

    async def read(self, prompt: str) -> str | None:
        for line in self._lines:
            if isinstance(line, str):
                return line.replace("{prompt}", prompt)
            await trio.sleep(line)
        return None
