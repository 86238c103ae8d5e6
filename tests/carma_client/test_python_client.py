"""The Python client, with a real daemon: commands, functions, logs, events, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, get_args, get_origin, get_type_hints
from urllib.parse import parse_qs, urlsplit

import pytest

from carma_client import AsyncClient, Client, Executor, Refused, Unknown, Unreachable
from carma_client.options import Options
from carma_client.transport import Connection
from docs.pages.http_api import schema
from tests import api_server
from tests.aio import run_async
from tests.api_server import as_user
from tests.attack.users import HOSTILE, needs_root
from tests.daemon import NO_KERNELS, ROOT, Carmad, running
from tests.functions import add
from tests.waiting import PATIENCE_S, until

SENT: list[tuple[str, str, bytes]] = []  # all requests of this module: method, target, body


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("carmad"), **NO_KERNELS) as daemon:
        yield daemon


@pytest.fixture
def client(carmad: Carmad, monkeypatch: pytest.MonkeyPatch) -> Client:
    """In the daemon's folder, with a cache of its own."""
    monkeypatch.chdir(carmad.work)
    monkeypatch.setenv("XDG_CACHE_HOME", str(carmad.folder / "cache"))
    return Client(carmad.socket)


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Connection.request

    def note(self: Connection, method: str, url: str, *more: Any, headers: Any = None) -> None:
        SENT.append((method, url, more[0].getvalue() if more else b""))
        request(self, method, url, *more, headers=headers)

    monkeypatch.setattr(Connection, "request", note)


# commands


def test_a_command_from_its_submission_to_its_end(client: Client) -> None:
    before = os.umask(0o027)
    try:
        label = client.submit(["sh", "-c", "echo one; pwd; umask"], gpus=2, name="unit", cpus=1)
    finally:
        os.umask(before)
    assert client.job(label)["name"] == "unit"
    job = client.wait(label)
    assert (job["state"], job["gpus_wanted"], job["cpus"]) == ("succeeded", 2, 1)
    assert list(client.logs(label)) == ["one", str(Path.cwd()), "0027"]
    assert [each["label"] for each in client.jobs(label)] == [label]
    assert label not in [each["label"] for each in client.jobs()]
    assert client.jobs([]) == []


def test_an_array_is_named_by_one_label(client: Client) -> None:
    label = client.submit(["true"], array={"indices": [0, 2]}, gpus=0)
    tasks = [job["label"] for job in client.jobs(label)]
    assert tasks == [f"{label}_0", f"{label}_2"]
    assert {client.wait(task)["state"] for task in tasks} == {"succeeded"}


def test_holding_releasing_cancelling_requeueing(client: Client) -> None:
    label = client.submit(["sleep", "600"], held=True)
    assert client.job(label)["held"]
    assert client.release(label)[0]["ok"]
    client.cancel(label)
    assert client.wait(label)["state"] == "cancelled"
    with pytest.raises(Refused, match=f"^job {label} has already ended"):
        client.hold(label)
    client.requeue(label)
    client.cancel(label)
    assert client.wait(label)["state"] == "cancelled"


def test_errors_have_the_daemons_words(client: Client, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no job 999999") as refused:
        client.wait("999999")
    assert (refused.value.code, "carma history" in refused.value.hint) == ("not_found", True)
    for ask in client.job, client.wait, lambda label: next(client.logs(label)):
        with pytest.raises(Refused, match="there is no job '1/why'"):
            ask("1/why")
    with pytest.raises(Refused, match="99 GPUs"):
        client.submit(["true"], gpus=99)
    with pytest.raises(Refused, match="gpu_count"):
        client.submit(["true"], gpu_count=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="list of words"):
        client.submit("python train.py")
    with pytest.raises(Unreachable, match="no answer at"):
        Client(str(tmp_path / "none")).jobs()
    with pytest.raises(Unreachable, match="no answer at"):
        next(Client(str(tmp_path / "none")).events())


@needs_root
def test_other_users_jobs_are_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with api_server.running(Path(folder)) as daemon:
            label = Client(daemon.path).submit(["train"], cwd="/", held=True, name="secret")

            def theirs() -> list[str]:
                client, said = Client(daemon.path), []
                for ask in (client.job, client.wait, client.cancel, client.requeue, client.logs):
                    try:
                        next(iter(ask(label)))  # type: ignore[operator]
                    except Refused as refused:
                        said.append(f"{refused.code}: {refused.message}")
                return [*said, client.jobs(label)[0]["name"]]

            *said, name = as_user(HOSTILE[0], theirs)
    assert said == [f"not_yours: job {label} is root's"] * 5
    assert name == "-"


def test_an_answer_that_is_lost_leaves_it_open_what_was_done(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "sock"))
        daemon.listen()

        def dies() -> None:
            with daemon.accept()[0] as connection:
                while b'"argv"' not in connection.recv(1 << 20):
                    pass

        threading.Thread(target=dies).start()
        with pytest.raises(Unknown, match="without an answer") as lost:
            Client(str(tmp_path / "sock")).submit(["true"])
        assert "before you submit it again" in lost.value.hint


# the guide


def test_the_guides_scripts_run(client: Client) -> None:
    guide = (ROOT / "docs/guides/python.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", guide, re.DOTALL):
        Path(code.split()[1]).write_text(code)
    Path("train.py").write_text("print('trained')")
    said = {}
    for script in ("command.py", "sweep.py", "both.py"):
        env = os.environ | {"CARMA_SOCKET": client.socket}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        ran = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
        assert ran.returncode == 0, ran
        said[script] = ran.stdout
    assert said["command.py"] == "trained\nsucceeded\n"
    assert said["sweep.py"] == "[0.9, 0.99]\n0.999\n"
    assert re.fullmatch(r"(\d+ succeeded\n){2}", said["both.py"])


# restarts


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, **NO_KERNELS) as daemon:
        yield daemon


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_it_waits_follows_and_listens_over_a_restart(own: Carmad, how: str) -> None:
    """Both clients at once, of one job that ends only after the restart, and one that ends while
    the daemon is away."""
    client, go = Client(own.socket), own.work / "go"
    script = f"echo before; while [ ! -e {go} ]; do sleep 0.05; done; echo after"
    label = client.submit(["sh", "-c", script], cwd=str(own.work))
    own.await_state(int(label), "running", "starting")
    away = client.submit(["sh", "-c", f"while [ ! -e {own.work}/away ]; do sleep 0.05; done"])
    own.await_state(int(away), "running", "starting")
    found: dict[str, Any] = {}
    broke: list[str] = []
    earlier = len(SENT)
    events = client.events(label, broken=broke.append)
    assert next(events)["event"] == "watching"
    follows = client.logs(label, follow=True)
    assert next(follows) == "before"

    lines: list[str] = []

    async def follow(theirs: AsyncClient) -> None:
        async for line in theirs.logs(label, follow=True):
            lines.append(line)

    async def all_of_it() -> None:
        theirs = AsyncClient(own.socket)
        found["async"], found["away"], _ = await asyncio.gather(
            theirs.wait(label), theirs.wait(away), follow(theirs)
        )

    threads = [
        threading.Thread(target=lambda: found.update(wait=client.wait(label))),
        threading.Thread(target=lambda: found.update(events=list(events))),
        threading.Thread(target=lambda: found.update(logs=list(follows))),
        threading.Thread(target=lambda: asyncio.run(all_of_it())),
    ]
    for thread in threads:
        thread.start()
    waits = f"/v1/jobs/{label}/wait?timeout_s="
    until(lambda: ("GET", f"{waits}30", b"") in SENT[earlier:], "one to wait")
    asked = ("GET", f"{waits}0", b"")  # by both at first, and by the other when it follows
    until(lambda: SENT[earlier:].count(asked) == 3, "the other to wait")
    until(lambda: lines, "both to follow")  # the first question of all is not asked again
    getattr(own, how)()
    until(lambda: broke, "the stream to notice")
    (own.work / "away").touch()
    own.start()
    go.touch()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found["wait"]["state"] == found["async"]["state"] == "succeeded"
    assert found["away"]["state"] == "succeeded"
    assert (found["logs"], lines) == (["after"], ["before", "after"])
    assert found["events"][-1]["event"] == "ended"


async def listed(found: Any) -> list[Any]:
    return [each async for each in found]


# asyncio


def test_all_of_it_with_asyncio(carmad: Carmad, client: Client) -> None:
    async def main() -> None:
        theirs = AsyncClient(carmad.socket)
        stream = theirs.events()
        assert (await anext(stream))["event"] == "watching"
        label = await theirs.submit(["echo", "hello"], held=True)
        await theirs.release(label)
        loop, executor = asyncio.get_running_loop(), Executor(client=client, gpus=0)
        job, three = await asyncio.gather(
            theirs.wait(label), loop.run_in_executor(executor, add, 1, 2)
        )
        assert (job["state"], three) == ("succeeded", 3)
        assert await listed(theirs.logs(label)) == ["hello"]
        assert [each["label"] for each in await theirs.jobs([label])] == [label]
        mine = (each async for each in stream if each.get("job", {}).get("label") == label)
        assert [(await anext(mine))["event"] for _ in range(3)] == [
            "submitted",
            "released",
            "started",
        ]
        with pytest.raises(Refused, match="already ended"):
            await theirs.cancel(label)
        over = theirs.events(label)
        assert (await listed(over))[0]["event"] == "watching"
        assert await listed(over) == [], "it has ended, and stays so"

    run_async(main())


def test_who_is_cancelled_while_listening_misses_nothing(client: Client, carmad: Carmad) -> None:
    async def main() -> list[str]:
        theirs = AsyncClient(carmad.socket)
        label = await theirs.submit(["true"], held=True, begin_at="2099-01-01T00:00:00Z")
        stream = theirs.events(label)
        assert (await anext(stream))["event"] == "watching"
        found: list[str] = []
        while len(found) < 40:
            act = theirs.hold if len(found) % 2 else theirs.release
            acting = asyncio.ensure_future(act(label))
            before, patience = len(found), 0
            while len(found) == before:
                more = asyncio.ensure_future(anext(stream))  # type: ignore[arg-type]
                for _ in range(patience % 7):
                    await asyncio.sleep(0)
                more.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    found.append((await more)["event"])
                patience += 1
            await acting
        await theirs.cancel(label)
        return found

    assert run_async(main()) == ["released", "held"] * 20


def test_what_is_cancelled_leaves_no_connection(carmad: Carmad, client: Client) -> None:
    async def main() -> None:
        theirs = AsyncClient(carmad.socket)
        label = await theirs.submit(["true"], held=True)
        before = connections()
        for waits in (theirs.wait(label), listed(theirs.events(label))):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waits, 0.2)
        until(lambda: connections() == before, "its threads to end")
        await theirs.cancel(label)

    run_async(main())


def connections() -> int:
    count = 0
    for each in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            count += "socket" in str(each.readlink())
    return count


def test_hundreds_of_jobs_are_awaited_on_one_connection(carmad: Carmad, client: Client) -> None:
    async def main() -> set[str]:
        theirs = AsyncClient(carmad.socket)
        label = client.submit(["true"], gpus=0, held=True, array={"indices": list(range(500))})
        before = connections()
        tasks = [asyncio.ensure_future(theirs.wait(f"{label}_{n}")) for n in range(500)]
        whole = asyncio.ensure_future(theirs.wait(label))
        asked = f"/v1/jobs/{label}"
        while sum(target.startswith(asked) for _, target, _ in SENT) < 2 * 501:
            await asyncio.sleep(0.05)
        while connections() != before + 1:  # each has asked again since it listens
            await asyncio.sleep(0.05)
        await theirs.cancel(label)
        jobs = await asyncio.gather(whole, *tasks)
        while connections() != before:
            await asyncio.sleep(0.05)
        return {job["state"] for job in jobs}

    assert run_async(asyncio.wait_for(main(), PATIENCE_S)) == {"cancelled"}


# the API, and what is imported


def test_the_options_are_those_of_the_api() -> None:
    asked = schema()["components"]["schemas"]["SubmitIn"]["properties"]
    hints = get_type_hints(Options)
    assert hints.keys() == asked.keys() - {"argv", "script", "interactive", "dry_run"}
    for name, hint in hints.items():
        kinds = asked[name].get("anyOf", [asked[name]])
        optional = {"type": "null"} in kinds
        assert (type(None) in get_args(hint)) == optional, name
        (kind,) = (each for each in kinds if each != {"type": "null"})
        word = {"integer": "int", "number": "float", "boolean": "bool", "string": "str"}
        if kind.get("type") in word:
            plain = [each for each in (get_args(hint) or [hint]) if each is not type(None)]
            assert [each.__name__ for each in plain] == [word[kind["type"]]], name


def test_the_shapes_of_options_are_those_of_the_api() -> None:
    from carma_client import options

    shapes = schema()["components"]["schemas"]
    for name in ("After", "Warn", "Array"):
        mine = getattr(options, name)
        theirs = shapes[f"{name}In"]
        hints = get_type_hints(mine, include_extras=True)
        assert hints.keys() == theirs["properties"].keys()
        needed = {each for each, hint in hints.items() if get_origin(hint) is not NotRequired}
        assert needed == set(theirs["required"])


def test_its_requests_are_those_of_the_api(carmad: Carmad, client: Client) -> None:
    """Of what the tests before this one have sent."""
    client.wait(client.submit(["true"], gpus=0))
    next(client.events(since="2020-01-01T00:00:00Z"))
    paths = schema()["paths"]
    for method, target, body in SENT:
        path = re.sub(r"/jobs/[^/]+", "/jobs/{label}", urlsplit(target).path)
        known = paths[path][method.lower()]
        named = {one["name"] for one in known.get("parameters", ())}
        assert parse_qs(urlsplit(target).query).keys() <= named, target
        if body:
            shape = known["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            fields = schema()["components"]["schemas"][shape.rpartition("/")[2]]["properties"]
            assert json.loads(body).keys() <= fields.keys() | {"gpu_count"}, target


def test_importing_the_client_imports_little() -> None:
    code = (
        "import sys; before = set(sys.modules); from carma_client import Client; Client('x');"
        "print(*sorted(set(sys.modules) - before))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    loaded = set(ran.stdout.split())
    assert "carma_client.client" in loaded
    heavy = {"asyncio", "pickle", "dataclasses", "pydantic"}
    assert not loaded & heavy
    assert {name for name in loaded if name.startswith("carmad")} == {
        "carmad",
        "carmad.errors",
        "carmad.paths",
        "carmad.states",
    }
    assert not [name for name in loaded if name.partition(".")[0] == "cli"]
