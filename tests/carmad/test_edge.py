"""A package outside the tree that plugs in everywhere at once, and one whose parts all fail."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carmad.daemon import parts
from carmad.installed import look_again
from cli.main import main, run
from cli.verbs import find_word
from tests.daemon import NO_KERNELS, Carmad
from tests.waiting import until

VERBS = """
from cli.verbs import Checks
from cli.verbs import MONITORING, Command, Word

HEARD = Command("heard", "lab_extra.command", "Say what was heard.", MONITORING)
OPEN = Command("lab open", "lab_extra.command", "Open it.")
LAB = Command("lab", "lab_extra.command", "Of the lab.", below=(OPEN,))
HELLO = Word("hello", "lab_extra.command:hello")
SIMULATE = Command("simulate", "lab_extra.command", "Not ours.")
MISNAMED = Command("other", "lab_extra.command", "Called by another name.")
ROOF = Checks("the roof", lambda: [{"name": "roof", "ok": True, "detail": "on", "hint": ""}])
LEAKS = Checks("the roof", lambda: [], take_over=lambda: 1 / 0)
OPEN_UP = Command("open-up", "lab_extra.command", "Open it.")
"""

COMMAND = """
from typing import Annotated

import typer

from cli import client

def heard(loud: Annotated[bool, typer.Option("--loud", help="in capitals")] = False):
    said = str(client.get("/v1/heard"))
    print(said.upper() if loud else said)
    return 0

def lab_open(door: str):
    print("opened", door)
    return 0

def open_up():
    print("opened all")
    return 0

def hello(name, words):
    print(name, *words)
    return 7
"""

DAEMON = """
import threading

from fastapi import APIRouter

from carmad.api.call import Caller, answer
from carmad.edge import Chore, Follower, Host

router = APIRouter()
heard = {"steps": 0, "resets": 0, "happenings": []}

@router.get("/heard")
async def get_heard(call: Caller):
    return answer({**heard, "for": call.peer.uid})

@router.get("/gpus")
async def of_ours(call: Caller):
    return answer("not ours")

class Hears(Follower):
    def on_commit(self, step):
        heard["steps"] += 1

    def on_reset(self, jobs):
        heard["resets"] += 1

    def on_happenings(self, happenings, gpus):
        heard["happenings"] += [each.kind.value for each in happenings]

def hears(host: Host):
    return Hears()

class Writes:
    def __init__(self, host: Host):
        self.host = host
        host.add_chore(Chore("last", self.last, "interval", {"hours": 1}, at_stop=True))

    def last(self):
        (self.host.state_dir / "last").write_text("done")

    def start(self):
        threading.Thread(target=self.look).start()

    def look(self):
        users, gpus = len(self.host.records.users()), len(self.host.scene().gpus)
        (self.host.state_dir / "started").write_text(f"{users} {gpus}")

    def stop(self):
        (self.host.state_dir / "stopped").write_text(self.host.settings().policy)

class AtEnds(Writes, Follower):
    \"\"\"A service that follows the core.\"\"\"

    def on_commit(self, step):
        ended = [job.id for job in step.jobs if job.ended]
        for job in ended:
            (self.host.state_dir / f"ended-{job}").touch()

def nothing(host):
    return None

class Namesake(Follower):
    def start(self):
        pass

    stop = start

def namesake(host):
    return Namesake()

def badly_planned(host):
    host.add_chore(Chore("never", print, "no such trigger", {}))
"""

BROKEN = """
from carmad.edge import Follower

class Raises(Follower):
    def __getattribute__(self, name):
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(f"a bug in {name}")

def raises(host):
    return Raises()

def cannot(host):
    raise KeyError("no such thing")

class Exits(Follower):
    def on_commit(self, step):
        raise SystemExit("at a step")

    def start(self):
        raise SystemExit("at its start")

def exits(host):
    return Exits()

def gives_up(host):
    raise SystemExit("when it is built")

def no_follower(host):
    return "nobody"

no_router = 7
"""

LOST = """
from cli.verbs import Command

LOST = Command("lost", "lab_broken.nowhere", "Its module is not there.")
"""

POINTS = """
[carma.commands]
heard = lab_extra.verbs:HEARD
lab = lab_extra.verbs:LAB
hello = lab_extra.verbs:HELLO
queue = lab_extra.verbs:HEARD
simulate = lab_extra.verbs:SIMULATE
misnamed = lab_extra.verbs:MISNAMED
open-up = lab_extra.verbs:OPEN_UP
[carma.checks]
the-roof = lab_extra.verbs:ROOF
leaks = lab_extra.verbs:LEAKS
gpu = lab_extra.verbs:LEAKS
[carma.routes]
heard = lab_extra.daemon:router
[carma.followers]
heard = lab_extra.daemon:hears
[carma.services]
writes = lab_extra.daemon:AtEnds
nothing = lab_extra.daemon:nothing
planned = lab_extra.daemon:badly_planned
notices = lab_extra.daemon:namesake
"""

BROKEN_POINTS = """
[carma.commands]
gone = lab_broken.nowhere:GONE
bare = lab_broken:NO_SUCH
exits = lab_broken_exits:VERB
lost = lab_broken_lost:LOST
[carma.routes]
gone = lab_broken.nowhere:router
odd = lab_broken:no_router
[carma.followers]
raises = lab_broken:raises
cannot = lab_broken:cannot
exits = lab_broken:exits
odd = lab_broken:no_follower
[carma.services]
gives-up = lab_broken:gives_up
exits = lab_broken:exits
starts = lab_broken:raises
cannot = lab_broken:cannot
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Both packages, as installed by pip."""
    folder = tmp_path / "packages"
    package = folder / "lab_extra"
    package.mkdir(parents=True)
    for name, text in (
        ("__init__", ""),
        ("verbs", VERBS),
        ("command", COMMAND),
        ("daemon", DAEMON),
    ):
        (package / f"{name}.py").write_text(text)
    (folder / "lab_broken.py").write_text(BROKEN)
    (folder / "lab_broken_exits.py").write_text("raise SystemExit(3)")
    (folder / "lab_broken_lost.py").write_text(LOST)
    for name, points in (("lab_extra", POINTS), ("lab_broken", BROKEN_POINTS)):
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [each for each in sys.modules if each.startswith(("lab_extra", "lab_broken"))]:
        del sys.modules[name]


def test_a_daemon_runs_the_parts_of_packages_and_survives_broken_ones(
    installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    carmad = Carmad(tmp_path, PYTHONPATH=str(installed), **NO_KERNELS)
    try:
        carmad.start()
        until((carmad.state / "started").exists, "the service to look")
        job = carmad.sh("true")
        carmad.ended(job)
        until(lambda: (carmad.state / f"ended-{job}").exists(), "the service to follow")
        heard = carmad.get("/v1/heard")
        assert heard["steps"] > 0 and heard["resets"] == 1
        assert heard["happenings"][-1] == "ended"
        assert isinstance(carmad.get("/v1/gpus"), dict), "no package takes a route of ours"

        monkeypatch.setenv("CARMA_SOCKET", carmad.socket)
        assert run(["heard", "--loud"]) == 0
        assert "'ENDED'" in capsys.readouterr().out
        assert run(["queue"]) == 0
        assert "steps" not in capsys.readouterr().out, "no package takes a verb of ours"
        carmad.stop()
    finally:
        carmad.clear_away()
    assert (carmad.state / "started").read_text().split()[0] == "0"
    assert (carmad.state / "stopped").read_text() == "magm"
    assert (carmad.state / "last").read_text() == "done"
    log = carmad.log.read_text()
    for told in (
        "cannot of carma.services is left out, as lab_broken:cannot fails",
        "gone of carma.routes is left out, as lab_broken.nowhere:router fails",
        "the follower lab_broken.Raises has failed",
        "the service starts did not start",
        "gives-up of carma.services is left out, as lab_broken:gives_up fails",
        "the service exits did not start",
        "the follower lab_broken.Exits has failed",
        "odd of carma.followers is left out, as lab_broken:no_follower fails",
        "the routes odd cannot be added, and are left out",
        "never cannot be planned, and is left out",
    ):
        assert told in log


def test_a_service_that_hangs_does_not_keep_the_daemon_from_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts, "PLUGGED_WITHIN_S", 0.1)
    done = threading.Event()

    class Hangs:
        def start(self) -> None: ...
        def stop(self) -> None:
            done.wait(60.0)

    parts._stop("lab", Hangs())
    done.set()
    assert "the service lab has not stopped in 0.1 s" in caplog.text and "done.wait" in caplog.text


def test_verbs_of_packages_are_listed_and_explained_as_others(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["help", "--all"]) == 0
    out = capsys.readouterr().out
    assert "heard" in out.partition("Monitoring")[2].partition("Administration")[0]
    assert "Of the lab." in out and "hello" not in out
    assert "Called by another name." not in out, "nobody can call it so"
    assert run(["heard", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: carma heard")
    assert run(["lab", "open", "door"]) == 0
    assert capsys.readouterr().out == "opened door\n"
    assert run(["open-up"]) == 0
    assert capsys.readouterr().out == "opened all\n"
    assert run(["lab", "--help"]) == 0
    assert "Open it." in capsys.readouterr().out
    assert run(["haerd"]) == 2
    assert "did you mean `carma heard`?" in capsys.readouterr().err


def test_the_doctor_does_what_packages_add_and_survives_broken_ones(
    installed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    def forget() -> None:
        """Which options it has: it learns that when it is imported."""
        sys.modules.pop("cli.commands.doctor", None)

    forget()
    request.addfinalizer(forget)
    assert run(["doctor", "--the-roof"]) == 0
    assert capsys.readouterr().out.split() == ["ok", "roof", "on"]
    monkeypatch.setattr("carmad.paths.is_served", lambda: False)
    monkeypatch.setattr("cli.commands.doctor._local", list)
    monkeypatch.setattr("cli.commands.doctor._without_daemon", list)
    assert run(["doctor"]) == 1
    assert "no answer" in capsys.readouterr().out
    assert run(["doctor", "--help"]) == 0
    assert "--the-roof" in capsys.readouterr().out


def test_a_verb_whose_package_is_broken_says_so(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (
        ("gone", "lab_broken.nowhere:GONE"),
        ("bare", "lab_broken:NO_SUCH"),
        ("exits", "lab_broken_exits:VERB"),
    ):
        assert run([name]) == 1
        assert f"carma: {name} cannot be loaded from {value}: " in capsys.readouterr().err
        monkeypatch.setattr(sys, "argv", [f"/usr/bin/{name}"])
        with pytest.raises(SystemExit, match="1"):
            main()
        assert f"carma: {name} cannot be loaded from {value}: " in capsys.readouterr().err


def test_a_broken_package_takes_no_completion_and_no_verb_of_others(
    installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--help-all"]) == 0
    out = capsys.readouterr().out
    assert " lost " in out and " heard " in out
    points = installed / "lab_broken-1.0.dist-info/entry_points.txt"
    points.write_text("[carma.commands]\nno-daemon = lab_broken.nowhere:verb\n")
    monkeypatch.setattr("carmad.installed.DISTRIBUTION", "lab_broken")  # ours has one, too
    monkeypatch.setattr("carmad.paths.is_served", lambda: False)
    look_again()
    assert run(["help", "queue"]) == 0


def test_a_link_with_the_name_of_a_word_is_that_word(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/hello", "you", "all"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 7 and capsys.readouterr().out == "hello you all\n"
    assert find_word("heard") is None, "it is a verb"
    assert run(["hello"]) == 2, "it is no verb"
