"""What all tests share: fixtures, how they are collected, and how Hypothesis tries examples."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import audit
from tests.fake_daemon import FakeDaemon, serving
from tests.leftovers import Leftovers

# No deadline: a busy machine is not a fault.
settings.register_profile("carma", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("carma")

# Under nohup, or in the background, these are ignored, and whatever a test starts would ignore them
# as well. A handler ends with an exec: we go on ignoring them, and no program inherits it.
for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, lambda *_: None)

LEFTOVERS = pytest.StashKey[Leftovers]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> Iterator[None]:
    """Before it starts the workers."""
    if not _is_worker(session):
        session.config.stash[LEFTOVERS] = Leftovers()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """After the workers have ended: a run that leaves a process has failed."""
    yield
    if (leftovers := session.config.stash.get(LEFTOVERS, None)) is not None:
        if named := leftovers.named():
            print(f"\nthe tests left processes behind: {', '.join(named)}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        leftovers.leave()
    if report := os.environ.get(audit.REPORT):
        Path(report).unlink()


if os.geteuid() == 0:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        os.environ[audit.REPORT] = file.name
    audit.listen()


@pytest.fixture(autouse=True)
def audited() -> Iterator[None]:
    """As root: no code of CARMA's looks where a user can keep it waiting, here or in a carmad."""
    yield
    if report := os.environ.get(audit.REPORT):
        with open(report, "r+b") as heard:  # noqa: PTH123 - it is the descriptor that is emptied
            said = heard.read().decode()
            heard.truncate(0)
        assert not said, said


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is imported stays: to look through it for garbage again and again would take a tenth of
    the processor time."""
    gc.disable()
    try:
        with _after_the_first() if _is_worker(session) else contextlib.nullcontext():
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _is_worker(session: pytest.Session) -> bool:
    """Of pytest-xdist, which has several."""
    return hasattr(session.config, "workerinput")


@contextlib.contextmanager
def _after_the_first() -> Iterator[None]:
    """One worker imports the tests before the others do, which then find all of it compiled."""
    lock = os.open(Path(__file__).parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(lock)


@pytest.fixture(autouse=True, scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`prog`, which tests submit, is on PATH."""
    path = tmp_path_factory.mktemp("programs") / "prog"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    path.parent.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{os.environ['PATH']}:{path.parent}")
        yield


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """For `carma` in this test, which may submit `python train.py`."""
    monkeypatch.setenv("CARMA_SOCKET", str(tmp_path / "carmad.sock"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with serving(tmp_path / "carmad.sock") as daemon:
        yield daemon
