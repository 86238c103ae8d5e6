"""Completion in real shells, by the scripts that typer makes."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fake_daemon import FakeDaemon
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path: Path, fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of scripts, and `carma` on PATH."""
    program = tmp_path / "bin" / "carma"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom cli.main import main\nmain()\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CARMA_SOCKET", str(fake.path))
    for shell in ("bash", "zsh", "fish"):
        env = {**os.environ, "_CARMA_COMPLETE": f"source_{shell}"}
        made = subprocess.run([program], env=env, capture_output=True, text=True, check=True)
        assert "carma" in made.stdout
        (tmp_path / shell).write_text(made.stdout)
    return tmp_path


@contextmanager
def typed(argv: list[str], **environ: str) -> Iterator[tuple[int, list[bytes]]]:
    """A shell at a terminal: the end to type at, and a list of what it writes."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "dumb", "PS1": "$ ", **environ}
    with subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    ) as shell:
        os.close(theirs)
        yield ours, []
        shell.kill()
    os.close(ours)


def until(end: int, seen: str, within_s: float = PATIENCE_S) -> str:
    """What is written until it contains `seen`."""
    os.set_blocking(end, False)
    deadline, out = time.monotonic() + within_s, b""
    while time.monotonic() < deadline:
        try:
            out += os.read(end, 65536)
        except BlockingIOError:
            time.sleep(0.02)
        if seen.encode() in out:
            return out.decode(errors="replace")
    raise AssertionError(f"no {seen!r} in {out!r}")


CASES = [
    ("carma que", "carma queue"),
    ("carma submit --gpu-m", "--gpu-mem"),
    ("carma cancel 4", "43"),
]


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize(("line", "seen"), CASES)
def test_bash(script: Path, line: str, seen: str) -> None:
    argv = ["bash", "--norc", "--noprofile", "-i"]
    with typed(argv) as (end, _):
        os.write(
            end, f". {script}/bash; bind 'set enable-bracketed-paste off'; echo re''ady\n".encode()
        )
        until(end, "ready")
        os.write(end, f"{line}\t\t".encode())
        assert seen in until(end, seen)


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
@pytest.mark.parametrize(("line", "seen"), CASES)
def test_zsh(script: Path, line: str, seen: str) -> None:
    with typed(["zsh", "-f", "-i"], ZDOTDIR=str(script)) as (end, _):
        begin = f"autoload -U compinit; compinit -u -D; . {script}/zsh; echo re''ady\n"
        os.write(end, begin.encode())
        until(end, "ready")
        os.write(end, f"{line}\t\t".encode())
        assert seen in until(end, seen)


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish")
@pytest.mark.parametrize(("line", "seen"), CASES)
def test_fish(script: Path, line: str, seen: str) -> None:
    code = f"source {script}/fish; complete -C '{line}'"
    ran = subprocess.run(
        ["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True
    )
    assert seen.removeprefix("carma ") in ran.stdout
