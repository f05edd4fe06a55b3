"""Take the pictures of the chat agent's web page that the docs show, in headless Chromium.

python -m tools.photograph_page docs/agents/chat-agent.png docs/agents/chat-agent-dark.png
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

import trio
from playwright.sync_api import sync_playwright

from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.limits import Limits
from examples.chat_agent.web.server import listen, run_web

FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


def photograph(url: str, light: Path, dark: Path) -> None:
    """Let some people talk for half a minute, and take the pictures in the midst of it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS)
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
        page.goto(f"{url}#me,bob")
        page.locator("#link.live").wait_for()

        def say(session: str, *texts: str) -> None:
            for text in texts:
                box = page.locator(f'[data-session="{session}"] textarea')
                box.fill(text)
                box.press("Enter")

        say("me", "what is 6*7?", "search pausing")
        page.click("#crowd")
        page.wait_for_timeout(9_000)
        say("bob", "what time is it?", "long 4", "please fail")
        page.click("#crowd")
        page.wait_for_timeout(12_000)
        say("bob", "mail eve: lunch at noon?")
        page.click("#crowd")
        page.wait_for_timeout(2_500)
        say("me", "long 40", "and then?", "one more")
        say("bob", "and tell her that I am hungry")
        page.wait_for_timeout(4_000)
        page.screenshot(path=str(light))
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=str(dark))
        browser.close()


async def main(light: Path, dark: Path) -> None:
    listener = listen(0)
    url = "http://{}:{}/".format(*listener.getsockname())
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await run_web(BuiltinModel(), lambda text: None, listener, limits=Limits())

        nursery.start_soon(serve)
        await trio.to_thread.run_sync(photograph, url, light, dark)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), Path(sys.argv[2]))
