"""What a command names and is not there is refused at submission, with what was perhaps meant."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from cli.hot import run as run_hot
from tests.fake_daemon import FakeDaemon

submit = partial(run_hot, "submit")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server with `python` and `train` on PATH, and conda's environments `torch` and `base`."""
    bin = tmp_path / "bin"
    conda = tmp_path / "conda"
    (conda / "envs/torch").mkdir(parents=True)
    bin.mkdir()
    for name in ("python", "train", "python3.11"):
        (bin / name).write_text("#!/bin/sh\n")
        (bin / name).chmod(0o755)
    for name, value in (("PATH", bin), ("HOME", tmp_path), ("CONDA_EXE", conda / "bin/conda")):
        monkeypatch.setenv(name, str(value))
    (tmp_path / "train.py").touch()
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["pyhton", "x.py"], "no program 'pyhton' on PATH", "did you mean python?"),
        (["python train.py"], "no program 'python train.py'", "without the quotes"),
        ([""], "an empty word", "give a program"),
        (["--time", "2", "h", "sleep", "1"], "no program 'h' on PATH", "--anyway"),
        (["python", "trian.py"], "no script 'trian.py' in", "did you mean train.py?"),
        (["python", "-u", "-W", "ignore", "trian.py"], "no script 'trian.py'", "train.py"),
        (["python3.11", "src/train.py"], "no script 'src/train.py'", "--anyway"),
        (["--conda", "trch", "train"], "no conda environment 'trch'", "did you mean torch?"),
        (["--conda", "/no/env", "train"], "no conda environment /no/env", "conda env list"),
        (["--output", "/nonexistent/x", "train"], "no directory /nonexistent", "mkdir -p"),
        (["--error", "lgos/x", "train"], "no directory", "mkdir -p"),
        (["--error", "$HOME/x", "train"], "no directory", "variables and ~ are not replaced here"),
        (["--output", "~/x", "train"], "no directory", "write the path"),
    ],
)
def test_it_is_refused(
    fake: FakeDaemon,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
    hint: str,
) -> None:
    assert submit(words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert hint in said.partition("hint: ")[2]
    if words != [""]:
        assert submit(["--anyway", *words]) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py"],
        ["python", "-m", "train"],
        ["python", "-c", "pass"],
        ["python", "-"],
        ["python", "-V"],
        ["python", "{script}"],
        ["train"],
        ["--after", "3", "python", "made.py"],
        ["--after", "3", "--output", "made/log", "train"],
        ["--output", "logs/%j", "train"],
        ["--output", "%x/%j", "train"],
        ["--conda", "torch", "only-there"],
        ["--conda", "base", "train"],
        ["--wrap", "cd x && ./y"],
        ["--container", "torch", "only-there"],
        ["--export", "PATH=/bin:/usr/bin", "sh"],
    ],
)
def test_what_is_there_or_may_be_there_is_accepted(
    fake: FakeDaemon, home: Path, words: list[str]
) -> None:
    assert submit(words) == 0


def test_an_environment_is_not_looked_for_where_nobody_knows_them(
    fake: FakeDaemon, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONDA_EXE")
    assert submit(["--conda", "somewhere", "train"]) == 0


def test_without_a_path_the_systems_own_is_searched(
    fake: FakeDaemon, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PATH")
    assert os.path.exists("/bin/true")  # noqa: PTH110
    assert submit(["true"]) == 0
