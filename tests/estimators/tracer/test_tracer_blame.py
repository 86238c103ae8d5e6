"""Which exceptions are a script's own crash, and which may be the trace's doing."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.tracer.blame import is_certain, missing_torch, own_crash


def raised(text: str) -> BaseException:
    linecache.cache["train.py"] = (len(text), None, text.splitlines(keepends=True), "train.py")
    try:
        exec(compile(text, "train.py", "exec"), {})
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("text", "crash"),
    [
        ("\nopen('data/none.csv')", "at train.py:2: FileNotFoundError: [Errno 2]"),
        ("import no_such_thing", "at train.py:1: ModuleNotFoundError: No module named 'no_such"),
        ("from json import nothing", "at train.py:1: ImportError: cannot import name"),
        ("len(fake_images)", "at train.py:1: NameError: name 'fake_images'"),
        ("len(3)", "at train.py:1: TypeError: object of type 'int'"),
        (
            "raise RuntimeError('shapes\\n\\n  differ')",
            "at train.py:1: RuntimeError: shapes; differ",
        ),
        (
            "raise ValueError('3 errors:\\nwidth is missing.\\nSo it fails')",
            "at train.py:1: ValueError: 3 errors: width is missing. So it fails",
        ),
        (
            "raise ValueError('see https://example.org/help')",
            "at train.py:1: ValueError: see https:",
        ),
        ("{}['lr']", "at train.py:1: KeyError: 'lr'"),
        ("raise SystemExit('no config')", "at train.py:1: exit status 1: no config"),
        ("import sys; sys.exit(3)", "at train.py:1: exit status 3"),
        ("if x = 1: pass", "at train.py:1: SyntaxError"),
        (
            "raise EOFError('EOF when reading a line')",
            "at train.py:1: EOFError: EOF when reading a line",
        ),
        ("class E(Exception):\n  __str__ = None\nraise E", "at train.py:3: E: no message"),
    ],
)
def test_own_crashes(text: str, crash: str) -> None:
    assert own_crash(raised(text)).startswith(crash)


def test_an_error_that_no_line_of_the_script_leads_to_is_not_the_scripts() -> None:
    library: dict[str, Callable[[], object]] = {}
    exec(compile("def f(): raise ValueError('x')", "/lib/site-packages/lib.py", "exec"), library)
    try:
        library["f"]()
    except ValueError as error:
        alone = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        assert own_crash(alone) == ""


def test_the_cause_is_told_of_a_framework_that_exits_after_it() -> None:
    text = "import sys\ntry:\n    {}['lr']\nexcept Exception as e:\n    print(e)\n    sys.exit(1)"
    assert own_crash(raised(text)) == "at train.py:3: KeyError: 'lr'"


def test_wrong_arguments_say_which() -> None:
    text = "import argparse; p = argparse.ArgumentParser()\np.parse_args(['--lrr', '1'])"
    error = raised(text)
    assert (
        is_certain(error)
        and own_crash(error) == "at train.py:2: exit status 2: unrecognized arguments: --lrr 1"
    )


def test_a_command_of_click_says_what_is_missing() -> None:
    text = """
import click
@click.command()
@click.option("--data", required=True)
def main(data): pass
main([])
"""
    error = raised(text)
    assert is_certain(error) and own_crash(error).startswith(
        "at train.py:6: exit status 2: Missing option '--data'"
    )


@pytest.mark.parametrize(
    "text",
    [
        "raise NotImplementedError('aten::foo')",
        "raise MemoryError",
        "raise PermissionError(13, 'Permission denied', 'out.txt')",
        "raise OSError(28, 'No space left on device', 'out.txt')",
        "raise OSError(\"We couldn't connect to 'https://huggingface.co'\")",
        "raise FileNotFoundError('the hub is offline')",
        "open('/dev/nvidia0')",
        "raise ImportError('no OptimizedModule', name='torch._dynamo')",
        "raise AttributeError(\"module 'torch.cuda' has no attribute 'x'\")",
        "raise RuntimeError('CUDA error: invalid device')",
        "raise ValueError('FakeTensor has no data')",
        "try:\n    raise ConnectionError\nexcept OSError:\n    raise SystemExit(1)",
        "try:\n    raise ConnectionError\nexcept OSError as e:\n    raise ValueError('x') from e",
        "raise KeyboardInterrupt",
        "raise UserWarning('with -W error')",
        "def f(): f()\nf()",
        "import subprocess\nsubprocess.run('exit 3', shell=True, check=True)",
        "raise EOFError",
        "import os\nos.environ['CARMA_GPU_MEM_MB']",
        "raise RuntimeError('NVML Shared Library Not Found')",
        "raise ImportError('libcudart.so.12: cannot open shared object file')",
        "raise RuntimeError('Tried to instantiate dummy base class CUDAGraph')",
        "raise RuntimeError('x must be a CUDA tensor')",
        "import sqlite3\nsqlite3.connect('/nonexistent/runs.db')",
        "from estimators.tracer.device import _Stream\n_Stream().no_such_method",
    ],
)
def test_what_the_trace_may_have_caused(text: str) -> None:
    assert own_crash(raised(text)) == ""


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("assert 0", False),
        ("[][1]", False),
        ("import sys; sys.exit(3)", False),
        ("len(nothing)", True),
        ("if len('') > 3: best = 1\nprint(best)", False),
        ("import math\nmath.sinn(3)", True),
        ("best = None\nbest.eval()", False),
        ("open('best.pt')", False),
        ("import no_such_thing", False),
        ("if x = 1: pass", True),
    ],
)
def test_what_may_depend_on_values_that_were_made_up(text: str, certain: bool) -> None:
    assert is_certain(raised(text)) is certain


def test_a_fault_of_the_tracer_is_not_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    def calling(call: Callable[[], object]) -> BaseException:
        try:
            call()
        except Exception as error:  # noqa: BLE001
            return error
        raise AssertionError

    monkeypatch.setattr("estimators.tracer.blame._OWN", "tests")
    assert own_crash(calling(lambda: 3 + "")) == ""  # type: ignore[operator]


def test_a_library_that_finds_no_gpu_is_not_the_scripts(tmp_path: Path) -> None:
    text = "def find(): raise RuntimeError('No GPU found')"
    library: dict[str, Callable[[], object]] = {}
    exec(compile(text, "/lib/python3/site-packages/lib.py", "exec"), library)
    try:
        library["find"]()
    except RuntimeError as error:
        assert own_crash(error.with_traceback(error.__traceback__)) == ""
    assert own_crash(raised("raise RuntimeError('needs 2 GPUs')")) != ""


def test_who_leaves_while_the_hub_is_offline_may_have_no_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", sys)
    assert own_crash(raised("raise SystemExit('no model')")) == ""
    wrong = "import argparse\nargparse.ArgumentParser().parse_args(['-x'])"
    assert own_crash(raised(wrong))
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    assert own_crash(raised("raise SystemExit('no model')"))


def test_a_python_without_torch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    for text, line in (
        ("import os\nimport torch.nn as nn", 2),
        ("from torch import nn", 1),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", 0),
        ("from .torch import x", 0),
        ("import torchaudio_x\nx = (", 0),
        ('"""Trains."""\nfrom torch import nn', 2),
        ("import sys\nsys.path.insert(0, '/opt/torch')\nimport torch", 0),
    ):
        script.write_text(text)
        found = missing_torch(str(script))
        assert (f"{script}:{line}: ModuleNotFoundError" in found) is bool(line), text
    assert missing_torch("-c") == "" == missing_torch(str(tmp_path / "none.py"))
