"""From a job's command line to the tracer's, and from its outcome to a report or a refusal."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict
from math import inf, nan
from pathlib import Path

import pytest

from carma_testing import a_server, a_spec
from carmad.config import Estimation
from carmad.plugin import JobSpec, Refusal, Settings, Trial
from estimators.look import TRACER, look, parse
from estimators.tracer import command
from estimators.tracer.command import FIND, Unreadable
from estimators.tracer.find import resolve
from estimators.tracer.report import Held, No, Report, loads
from estimators.tracer.shell import shebang
from tests.here import Here
from tests.reports import a_report


def spec(*argv: str, **fields: object) -> JobSpec:
    return a_spec(argv=argv, **fields)


@pytest.mark.parametrize(
    ("argv", "python", "script"),
    [
        (["python", "train.py", "-m", "x"], ["python"], ["train.py", "-m", "x"]),
        (["python3.11", "-u", "t.py"], ["python3.11", "-u"], ["t.py"]),
        (["/e/bin/python", "-W", "error", "t.py"], ["/e/bin/python", "-W", "error"], ["t.py"]),
        (["python", "-Xdev", "-X", "utf8", "t.py"], ["python", "-Xdev", "-X", "utf8"], ["t.py"]),
        (["python", "-m", "pkg.train", "--x"], ["python"], ["-m", "pkg.train", "--x"]),
        (["python", "-um", "pkg"], ["python", "-u"], ["-m", "pkg"]),
        (["python", "-mpkg"], ["python"], ["-m", "pkg"]),
        (["python", "-c", "print()", "-q"], ["python"], ["-c", "print()", "-q"]),
        (["env", "A=b", "C=", "python", "t.py"], ["env", "A=b", "C=", "python"], ["t.py"]),
    ],
)
def test_python_commands(argv: list[str], python: list[str], script: list[str]) -> None:
    program = parse(spec(*argv))
    assert (list(program.python), list(program.script)) == (python, script)


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["torchrun", "--nproc_per_node=4", "t.py"], "torch.distributed.run"),
        (["accelerate", "launch", "t.py"], "accelerate.commands.accelerate_cli"),
        (["deepspeed", "--num_gpus=2", "t.py"], "deepspeed.launcher.runner"),
    ],
)
def test_launchers_find_out_themselves_what_they_start(words: list[str], module: str) -> None:
    program = parse(spec(*words))
    assert program.python == (*FIND, "python", words[0])
    assert program.script == ("-m", module, *words[1:])


def test_a_launcher_runs_the_python_beside_it() -> None:
    program = parse(spec("/e/bin/accelerate", "launch", "--mixed_precision", "bf16", "t.py"))
    assert program.python == (*FIND, "/e/bin/python", "/e/bin/accelerate")
    found = parse(spec("env", "A=b", "/e/bin/torchrun", "t.py")).python
    assert found == ("env", "A=b", *FIND, "/e/bin/python", "/e/bin/torchrun")


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["python"], "not from a file"),
        (["python", "-u", "-"], "not from a file"),
        (["python", "-m", "ipykernel_launcher", "-f", "k.json"], "kernel may run anything"),
        (["env", "-i", "python", "t.py"], "options of env"),
        (["env"], "options of env"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_without_a_process(argv: list[str], why: str) -> None:
    server = a_server()
    answer = look(spec(*argv), Settings(), server)
    assert isinstance(answer, Refusal)
    assert why in answer.why
    assert not server.tried


def found(tmp_path: Path, *argv: str, **env: str) -> str:
    """Why a command was refused, or the Python that was found for it."""
    server = Here(tmp_path / "answer")
    one = spec(*argv, cwd=str(tmp_path), env=tuple(env.items()))
    answer = look(one, Settings(estimation=Estimation(within_s=60.0)), server)
    assert isinstance(answer, Refusal)
    return answer.why


# What it is to run, but the tracer and its options: a refusal has room for few letters.
PYTHON = """#!/bin/sh
for word; do case $word in {*|*/tracer) ;; *) said="$said $word" ;; esac; done
echo "would run$said"
exit 7
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script whose Python only prints what it should run."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    script = tmp_path / "train"
    script.write_text(f"#!{python} -u\nprint()\n")
    script.chmod(0o755)
    return script


def test_a_script_that_starts_itself_names_its_python(tmp_path: Path, script: Path) -> None:
    why = found(tmp_path, "./train", "--x")
    assert why.endswith("status 7 before two optimizer steps: would run -u ./train --x")
    assert found(tmp_path, "train", PATH=f"{tmp_path}:/bin").endswith(f" {script}")
    assert found(tmp_path, "env", f"PATH={tmp_path}:/bin", "train").endswith(f" {script}")


def test_a_launcher_names_its_python_too(tmp_path: Path, script: Path) -> None:
    script.rename(tmp_path / "torchrun")
    assert found(tmp_path, "./torchrun", "t.py", "--x").endswith(" t.py --x")
    (tmp_path / "torchrun").write_text("no Python's")
    (tmp_path / "python").symlink_to("bin/python3")
    assert found(tmp_path, "./torchrun", "t.py").endswith(" t.py")
    (tmp_path / "python").unlink()
    assert "its Python did not start: cannot run ./python: No such file" in found(
        tmp_path, "./torchrun", "t.py"
    )


def test_what_is_no_python_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    missing = found(tmp_path, "no-such-command", "60")
    assert missing == "no-such-command is not installed: it is in no folder of PATH"
    for name in ("sleep", "./none", "./pipe", "/dev/zero", "/", ""):
        assert found(tmp_path, name, "60").startswith(f"{Path(name).name} is no Python command")


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        ("nohup nice -n 5 {bin}/python3 t.py", "t.py"),
        ("bash run.sh 7", "t.py --n 7"),
        ("./run.sh", "t.py --n 3"),
        ("make fit", "t.py --n 5"),
        ("uv run t.py -x", "t.py -x"),
        ("uv run --extra gpu -- python t.py", "t.py"),
        ("uv run --no-sync -m pkg.train", "-m pkg.train"),
        ("poetry run python t.py -x", "t.py -x"),
        ("bash -c 'mkdir x; train --x'", "train --x"),
        ("conda run --no-capture-output -p .venv python t.py", "t.py"),
        ("{bin}/jupyter nbconvert --execute --to notebook n.ipynb", "n.ipynb"),
    ],
)
def test_the_python_behind_a_command(words: str, ran: str, tmp_path: Path, script: Path) -> None:
    """A folder with a project's .venv, of which uv and activated shells take the Python."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(tmp_path / "bin")
    (tmp_path / "bin" / "python").symlink_to("python3")
    (tmp_path / "bin" / "jupyter").write_text(f"#!{tmp_path}/bin/python3\n")
    (tmp_path / "bin" / "activate").write_text("PATH=$PWD/.venv/bin:$PATH\n")
    run = tmp_path / "run.sh"
    run.write_text("#!/bin/sh\n. .venv/bin/activate\npython t.py --n ${1:-3}\n")
    run.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    (tmp_path / "Makefile").write_text("fit:\n\t./run.sh 5 > log\n")
    why = found(tmp_path, *shlex.split(words.format(bin=tmp_path / "bin")), PATH=path)
    assert why.endswith(f"{ran}")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("uv run t.py", "run `uv sync` first"),
        ("uv pip install torch", "only `uv run` is known"),
        ("poetry run python t.py", "poetry has made no .venv for this yet: run `poetry install`"),
        ("conda run -n x python t.py", "envs/x for this yet: run `conda create` first"),
        ("papermill a.ipynb b.ipynb -p n 3", "parameters are not known"),
        ("bash no-such.sh", "cannot read"),
        ("bash -c ls", "a bash script: it runs no Python command"),
        ("sleep 3", "sleep is no Python command"),
    ],
)
def test_commands_without_a_python(words: str, why: str, tmp_path: Path) -> None:
    assert why in found(tmp_path, *words.split())


@pytest.mark.parametrize(
    ("words", "skipped"),
    [
        ("bash run.sh", ""),
        ("sh -c 'wget http://x; bash run.sh'", "`wget` before it was not run"),
        ("nohup srun -n 1 {bin}/python3 t.py", "`srun` was left out"),
        ("uv run --with einops t.py", "uv was not run, which may install packages first"),
        ("{bin}/jupyter execute n.ipynb", "IPython's kernel and magics were left out"),
    ],
)
def test_what_is_left_out_of_a_command_is_passed_on(
    words: str, skipped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / "run.sh").write_text("python t.py\n")
    path, here = os.environ["PATH"], str(tmp_path)
    argv = shlex.split(words.format(bin=tmp_path / "bin"))
    told = resolve(argv, {"PATH": path}, here, 1)
    assert told.skipped == skipped


@pytest.mark.parametrize(
    ("words", "folder", "last"),
    [
        ("uv run --directory sub t.py", "sub", "t.py"),
        ("uv run --project sub t.py", "", "t.py"),
        ("jupyter execute sub/n.ipynb", "sub", "n.ipynb"),
        ("papermill sub/n.ipynb out.ipynb", "", "sub/n.ipynb"),
    ],
)
def test_where_a_program_runs_its_script(
    words: str, folder: str, last: str, tmp_path: Path
) -> None:
    (tmp_path / "sub" / ".venv").mkdir(parents=True)
    told = resolve(words.split(), {"PATH": "/bin"}, str(tmp_path), 1)
    assert (Path(told.cwd), told.words[-1]) == (tmp_path / folder, last)


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("#!/usr/bin/env python3", ("python3",)),
        ("#!/usr/bin/env -S python3 -u", ("python3", "-u")),
        ("#! /usr/bin/python", ("/usr/bin/python",)),
        ("#!/bin/bash", ()),
        ("#!", ()),
        ("import torch", ()),
    ],
)
def test_shebangs(line: str, python: tuple[str, ...], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(line + "\n")
    assert shebang(str(script)) == python


def test_what_the_tracer_is_asked() -> None:
    server = a_server(gpu="NVIDIA H100 PCIe")
    look(spec("python", "t.py", gpus=2), Settings(), server)
    [argv] = server.tried
    assert (argv[:-2], argv[-1]) == (("python", str(TRACER)), "t.py")
    asked = command.Options.loads(argv[-2])
    assert (asked.gpus, asked.gpu) == (2, "NVIDIA H100 PCIe")
    limits = Settings().estimation
    assert (asked.within_s, asked.longest_s) == (limits.within_s, limits.longest_s)
    assert limits.within_s < limits.longest_s


def test_a_timm_model_is_run_by_carmas_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(spec("timm:resnet50", "--batch-size", "8"))
    assert program.python == (sys.executable,)
    assert program.script[1:] == ("resnet50", "--batch-size", "8")
    assert Path(program.script[0]).is_file()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unreadable, match=r"torch and timm, of the optional part estimators"):
        parse(spec("timm:resnet50"))


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        (Trial(b"", "", error="No such file: python"), "did not start: No such file: python"),
        (Trial(No("it is a poem").dumps(), "", code=0), "it is a poem"),
        (Trial(b'{"torch": "2.', "", code=0), "cut short"),
        (Trial(json.dumps({"torch": "2"}).encode(), "", code=0), "cut short"),
        (
            Trial(b"", "", timed_out=True),
            "within 30 s; `carma estimate --within SECONDS` waits longer",
        ),
        (Trial(b"", "a\nboom\n\n", code=3), "status 3 before two optimizer steps: boom"),
        (Trial(b"", "", code=0), "status 0"),
        (Trial(b"", "", signal=11), "SIGSEGV"),
        (Trial(b"", "", signal=40), "signal 40 ended it"),
    ],
)
def test_what_became_of_a_trial(trial: Trial, why: str) -> None:
    answer = look(spec("python", "t.py"), Settings(), a_server(trial))
    assert isinstance(answer, Refusal)
    assert why in answer.why
    assert answer.late == trial.timed_out


def test_a_script_that_was_slow_says_so_and_what_to_do() -> None:
    trial = Trial(No("it took no optimizer step in 12 s", late=True).dumps(), "", code=0)
    answer = look(spec("python", "t.py"), Settings(), a_server(trial))
    assert isinstance(answer, Refusal)
    assert answer.late
    assert answer.why.endswith("in 12 s; `carma estimate --within SECONDS` waits longer")


HELD = {"name": "fc", "kind": "Linear", "count": 1, "nbytes": 9}
MOMENT = {"in_use": [1, 2, 3, 4, 0, 5], "reserved": 20, "mark": "step1"}
EXPLANATION = {"modules": [HELD], "lines": [HELD], "remedies": [], "moments": [MOMENT]}


def explained(explanation: object) -> Report | Refusal:
    forged = asdict(a_report()) | {"explanation": explanation}
    trial = Trial(json.dumps(forged).encode(), "")
    return look(spec("python", "t.py"), Settings(), a_server(trial))


@pytest.mark.parametrize(
    "forged",
    [
        7,
        "explanation",
        [EXPLANATION],
        {},
        EXPLANATION | {"modules": 7},
        EXPLANATION | {"modules": {"name": 7}},
        EXPLANATION | {"lines": ["fc"]},
        EXPLANATION | {"remedies": [{"what": "a", "saved": [1], "exact": True}]},
        EXPLANATION | {"moments": [MOMENT | {"in_use": [1, 2]}]},
        EXPLANATION | {"moments": []},
        *(EXPLANATION | {"lines": [HELD | {"nbytes": n}]} for n in (inf, nan, 1e30, "9")),
        *(EXPLANATION | {"moments": [MOMENT | {"reserved": n}]} for n in (-inf, 1 << 70, None)),
    ],
)
def test_a_forged_explanation_is_refused_with_its_report(forged: object) -> None:
    answer = explained(forged)
    assert isinstance(answer, Refusal) and "cut short" in answer.why


def test_texts_of_an_explanation_are_bounded() -> None:
    held = HELD | {"name": "\ud800" * 9999, "kind": 7}
    answer = explained(EXPLANATION | {"modules": [held]})
    assert isinstance(answer, Report) and answer.explanation
    assert answer.explanation.modules == (Held("?" * 1000, "7", 1, 9),)


def test_what_is_nested_too_deeply_is_no_report() -> None:
    with pytest.raises(ValueError, match="not a tracer's report"):
        loads(b"[" * 1_000_000)


def test_a_report_passes_through() -> None:
    told = a_report(notes=("a", "b"))
    assert look(spec("python", "t.py"), Settings(), a_server(Trial(told.dumps(), ""))) == told
