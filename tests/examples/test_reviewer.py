"""`examples/reviewer.py`: a bot, one who asks and a reviewer, each a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import Program, running

pytestmark = pytest.mark.real_processes

EXAMPLE = Path("examples/reviewer.py")


async def said(*arguments: str | Path) -> str:
    """What a command of the example prints, until it has ended."""
    async with running(EXAMPLE, *arguments) as program:
        await program.process.wait()
        return await rest_of(program)


async def rest_of(program: Program) -> str:
    assert program.process.stdout is not None
    text = program.text
    async for data in program.process.stdout:
        text += data.decode()
    return text


async def question(store: Path, order: str) -> tuple[str, str]:
    """The job and the call of an open question, when there is one."""
    while True:
        for line in (await said("review", store)).splitlines():
            _, job, call, shown = line.split(" ", 3)
            if shown == order:
                return job, call


async def test_a_person_decides_in_another_process_also_after_the_bot_was_killed(
    tmp_path: Path,
) -> None:
    store = tmp_path / "jobs.db"
    async with running(EXAMPLE, "bot", store) as bot:
        await bot.line("ready")
        async with running(EXAMPLE, "ask", store, "ann", "refund order 5") as asking:
            job, call = await question(store, "refund order 5")
            bot.process.kill()
            await bot.process.wait()
            assert await said("review", store, job, call, "yes") == "refused: stopped\n"
            async with running(EXAMPLE, "bot", store) as next_bot:
                await next_bot.line("ready")
                while (answer := await said("review", store, job, call, "yes")) != "decided\n":
                    assert answer in ("refused: stopped\n", "refused: no_active_run\n")
                assert "refund order 5: done" in await rest_of(asking)
                late = await said("review", store, job, call, "no")  # the turn is over
                assert late == "refused: no_active_run\n"
                assert await said("review", store) == ""
                assert await said("history", store, "ann") == (
                    "user: refund order 5\nassistant: refund order 5: done\n"
                )
