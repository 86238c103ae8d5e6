"""An agent's session with `carma mcp`, by the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client import Client

from carma_agents.changing import NATURE
from carma_agents.command import VERBS
from carma_agents.reading import READ
from carma_agents.server import server
from carmad.installed import how_to_add
from tests.aio import run_async
from tests.api_server import as_user
from tests.attack.users import HOSTILE, needs_root
from tests.daemon import CARMA, NO_KERNELS, ROOT, Carmad, running
from tests.waiting import PATIENCE_S

Ask = Callable[..., Coroutine[None, None, Any]]


@pytest.fixture(scope="module")
def carmad() -> Iterator[Carmad]:
    """All users may ask it."""
    with tempfile.TemporaryDirectory(prefix="carma-mcp-") as folder:
        Path(folder).chmod(0o755)
        with running(Path(folder), "1xA100-40GB", **NO_KERNELS) as carmad:
            Path(carmad.socket).chmod(0o666)
            yield carmad


Talk = Callable[[Client, Ask], Any]


def session(carmad: Carmad, talk: Talk, *allowed: str) -> Any:
    """`ask(TOOL, **ARGUMENTS)` is its answer, read; or its error, as text."""

    async def hold() -> Any:
        async with Client(server(allowed)) as client:
            return await talk(client, asking(client))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CARMA_SOCKET", carmad.socket)
        patch.chdir(carmad.work)
        return run_async(hold())


def session_of_a_process(carmad: Carmad, talk: Talk, *allowed: str) -> Any:
    command, *words = CARMA
    options = [word for verb in allowed for word in ("--allow", verb)]
    env = {"CARMA_SOCKET": carmad.socket}
    started = StdioServerParameters(
        command=command, args=[*words, "mcp", *options], env=env, cwd=carmad.work
    )

    async def hold() -> Any:
        async with Client(started) as client:
            return await talk(client, asking(client))

    return run_async(hold())


def end(carmad: Carmad, *jobs: int) -> None:
    """The next test finds none of them in the queue."""
    carmad.post("/v1/cancel", {"select": ",".join(map(str, jobs))})
    for job in jobs:
        carmad.await_state(job, "cancelled")


def asking(client: Client) -> Ask:
    async def ask(tool: str, **arguments: object) -> Any:
        result = await client.call_tool(tool, arguments)
        (content,) = result.content
        if result.is_error:
            return content.text
        assert json.loads(content.text) == result.structured_content
        return result.structured_content

    return ask


def test_only_what_reads_is_there_unless_more_is_allowed(carmad: Carmad) -> None:
    async def talk(client: Client, ask: Ask) -> None:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [tool.__name__ for tool in READ]
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        assert all(tool.description for tool in tools)
        assert "Unknown tool" in await ask("submit", words=["true"])

    session(carmad, talk)


def test_who_may_submit_may_not_cancel(carmad: Carmad) -> None:
    async def talk(client: Client, ask: Ask) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() & NATURE.keys() == {"submit"}
        assert tools["submit"].annotations.read_only_hint is False

    session(carmad, talk, "submit")
    assert tuple(NATURE) == VERBS


def test_a_session(carmad: Carmad) -> None:
    """A job fills the GPU, another waits, and is cancelled."""

    async def talk(client: Client, ask: Ask) -> None:
        first = ["--exclusive", "--gpu-mem", "8G", "--name", "first", "--"]
        assert (await ask("what_if", words=[*first, "sleep", "1000"]))["would_start"]
        running = (await ask("submit", words=[*first, "sh", "-c", "echo seen; sleep 1000"]))[
            "label"
        ]
        await asyncio.to_thread(carmad.await_output, int(running), "seen")
        waiting = (await ask("submit", words=["--gpu-mem", "8G", "sleep", "1000"]))["label"]
        await asyncio.to_thread(carmad.await_state, int(waiting), "queued")
        states = {job["label"]: job["state"] for job in (await ask("queue"))["jobs"]}
        assert states.keys() == {running, waiting}
        assert states[waiting] == "queued"
        assert (await ask("job", job=running))["name"] == "first"
        assert (await ask("why", job=int(waiting)))["headline"]
        assert "seen" in (await ask("logs", job=running))["lines"]
        assert (await ask("status"))["gpus"][0]["jobs"]
        assert [job["label"] for job in (await ask("starts"))["starts"]] == [waiting]
        for job in (waiting, running):
            await ask("cancel", job=job)
            while (await ask("wait", job=job))["state"] != "cancelled":
                pass
        assert [job["label"] for job in (await ask("history", limit=1))["jobs"]] == [waiting]
        assert (await ask("stats"))["total"]

    session_of_a_process(carmad, talk, "submit", "cancel")


def test_an_agent_estimates_submits_after_a_question_and_reads_why(carmad: Carmad) -> None:
    """By the script of the guide."""
    script = ROOT / "examples/agent_session.py"
    command = ["--exclusive", "--gpu-mem", "3G", "sleep", "1000"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, str(script), *command],
        env=os.environ | {"CARMA_SOCKET": carmad.socket, "PATH": path},
        cwd=carmad.work,
        input="y\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert '"safe_mib": 3072' in done.stdout
    asked = "? Run `carma submit --time 2h --gpu-mem 3072M --exclusive"
    assert asked in done.stdout and "1 GPU, at most 2 GPU-hours" in done.stdout
    assert '"headline"' in done.stdout
    asked_why = re.search(r'> why {"job": (\d+)}', done.stdout)
    assert asked_why
    end(carmad, int(asked_why[1]))


def test_errors_are_those_of_the_command_line(carmad: Carmad) -> None:
    async def talk(client: Client, ask: Ask) -> None:
        assert "there is no job 999" in await ask("job", job="999")
        assert "no option --gpu-men" in await ask("what_if", words=["--gpu-men", "8G", "true"])
        assert "--gpu-mem" in await ask("what_if", words=["--help"])
        assert "queue" in await ask("submit", words=["queue"]), "it would run a job named queue"
        assert "jobs" not in await ask("queue"), "nothing was submitted, and the session goes on"

    session(carmad, talk, "submit")


def test_a_label_cannot_hide_another_request(carmad: Carmad) -> None:
    kept = carmad.sh("exec sleep 1000")
    hidden = json.dumps({"select": str(kept)})
    head = f"1 HTTP/1.0\r\n\r\nPOST /v1/cancel HTTP/1.0\r\nContent-Length: {len(hidden)}\r\n\r\n"

    async def talk(client: Client, ask: Ask) -> None:
        assert "names nothing" in await ask("job", job=f"{head}{hidden}")

    session(carmad, talk)
    assert carmad.job(kept)["state"] != "cancelled"
    end(carmad, kept)


def test_a_dry_run_submits_nothing(carmad: Carmad) -> None:
    async def talk(client: Client, ask: Ask) -> None:
        assert "call `what_if`" in await ask("submit", words=["--dry-run", "true"])
        assert (await ask("queue")).get("jobs", []) == []

    session(carmad, talk, "submit")


def test_of_a_long_log_the_end_is_told(carmad: Carmad) -> None:
    label = carmad.sh(
        "yes 1234567890123456789 | head -n 1900; yes '' | head -n 90; echo the end", gpus=0
    )
    carmad.ended(label)

    async def talk(client: Client, ask: Ask) -> None:
        told = await ask("logs", job=str(label), lines=2000)
        assert told["lines"][-1] == "the end"
        assert told["has_earlier_lines"]
        assert len(told["lines"]) > 1000

    session(carmad, talk)


def test_nothing_in_an_answer_is_hidden_from_who_reads_along(carmad: Carmad) -> None:
    hidden = "\U000e0041\u202e\u200b"
    label = carmad.sh(f"printf '%s\\n' 'seen{hidden}'; exit 3", name=f"name{hidden}", gpus=0)
    carmad.ended(label)

    async def talk(client: Client, ask: Ask) -> None:
        assert (await ask("job", job=str(label)))["name"] == "name???"
        for tool in ("job", "why", "logs"):
            answer = str(await ask(tool, job=str(label)))
            assert not set(hidden) & set(answer), tool

    session(carmad, talk)


def test_the_session_outlives_the_daemon(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB") as carmad:

        async def talk(client: Client, ask: Ask) -> None:
            assert (await ask("queue"))["more"] == 0
            carmad.kill()
            assert "no answer at" in await ask("submit", words=["true"])
            carmad.start()
            assert (await ask("queue"))["more"] == 0

        session(carmad, talk, "submit")


@needs_root
def test_others_see_no_more_than_on_the_command_line(
    carmad: Carmad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARMA_SOCKET", carmad.socket)
    label = str(carmad.sh("echo secret; sleep 1000", name="secret-name"))
    carmad.await_output(int(label), "secret")

    async def look() -> tuple[list[str], list[str]]:
        async with Client(server(tuple(NATURE))) as client:
            ask = asking(client)
            of_all = [str(await ask(tool)) for tool in ("status", "queue", "history", "starts")]
            of_one = [str(await ask(each, job=label)) for each in ("job", "why", "wait", "logs")]
            return of_all, [*of_one, str(await ask("cancel", job=label))]

    of_all, refused = as_user(HOSTILE[0], lambda: run_async(look()))
    assert all(f"'{label}'" in answer for answer in of_all[:2]), of_all
    assert "secret" not in str(of_all)
    assert all(f"job {label} is root's" in answer for answer in refused), refused
    end(carmad, int(label))


def test_a_long_answer_has_fewer_jobs_and_says_so(
    monkeypatch: pytest.MonkeyPatch, carmad: Carmad
) -> None:
    monkeypatch.setenv("CARMA_SOCKET", carmad.socket)
    jobs = [carmad.sh("true", held=True, name=f"{'x' * 100}{n}") for n in range(20)]

    async def look() -> str:
        async with Client(server(())) as client:
            (content,) = (await client.call_tool("queue", {})).content
            return content.text

    assert [job["id"] for job in json.loads(run_async(look()))["jobs"]] == jobs
    monkeypatch.setattr("carma_agents.reading.MOST", 5000)
    answer = run_async(look())
    assert len(answer) <= 5000
    told = json.loads(answer)
    kept = [job["id"] for job in told["jobs"]]
    assert kept == jobs[: len(kept)] != []
    assert told["left_out"] == {"jobs": len(jobs) - len(kept)}
    end(carmad, *jobs)


def test_of_a_log_of_quotes_the_end_is_told(carmad: Carmad) -> None:
    """In JSON, each is twice as long."""
    label = carmad.sh("yes '" + 9 * '"' + "' | head -n 2000; echo the end", gpus=0)
    carmad.ended(label)

    async def talk(client: Client, ask: Ask) -> None:
        told = await ask("logs", job=str(label), lines=2000)
        assert told["lines"][-1] == "the end"
        assert "left_out" not in told

    session(carmad, talk)


def test_without_the_package_it_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError('gone', name='mcp')")
    ran = subprocess.run(
        [sys.executable, "-c", "from cli.main import main; main()", "mcp"],
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert how_to_add("mcp") in ran.stderr
    assert ran.stdout == ""
