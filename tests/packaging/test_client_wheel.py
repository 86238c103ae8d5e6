"""The client alone: a distribution of its own (packaging/client), in older Pythons, typed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from carmad import CLIENT, installed
from tests.daemon import NO_KERNELS, ROOT, running
from tests.pythons import find_python
from tests.waiting import PATIENCE_S

OLDEST = next(filter(None, (find_python(f"3.{minor}", "pip") for minor in (9, 10))), None)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `pip install ./packaging/client` makes it."""
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    client = ROOT / "packaging/client"
    done = subprocess.run([*argv, "-w", str(folder), str(client)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = folder.iterdir()
    assert made.name.startswith(CLIENT.replace("-", "_"))
    return made


def install(wheel: Path, folder: Path, python: str) -> None:
    argv = [python, "-m", "pip", "install", "--no-index", "--no-compile", "--target", str(folder)]
    done = subprocess.run([*argv, str(wheel)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


def test_the_client_alone_does_all_that_it_can_with_an_older_python(
    wheel: Path, tmp_path: Path
) -> None:
    """With the oldest of this machine; the daemon has the Python of the tests."""
    python = OLDEST or sys.executable
    install(wheel, tmp_path / "alone", python)
    compiles = [python, "-m", "compileall", "-q", str(tmp_path / "alone")]
    subprocess.run(compiles, check=True)  # also what needs submitit, Hydra or joblib
    with running(tmp_path, **NO_KERNELS) as carmad:
        env = {name: word for name, word in os.environ.items() if not name.startswith("PYTHON")}
        env |= {"PYTHONPATH": str(tmp_path / "alone"), "CARMA_SOCKET": carmad.socket}
        env |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        argv = [python, "-s", str(ROOT / "tests/packaging/client_program.py")]
        ran = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "succeeded ['one']",
        "bad_request",
        "[1024, 9]",
        "['%', '(3, 1)']",
        "True",
        "onetwo",
        "True",
        "failed",
        "watching failed F ['hello']",
    ]


def test_it_needs_nothing_but_itself(wheel: Path) -> None:
    """Apart from what those load who have it."""
    theirs = {"cloudpickle", "hydra", "hydra_plugins", "joblib", "submitit", "typing_extensions"}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        modules = {name: archive.read(name) for name in names if name.endswith(".py")}
    for name, source in modules.items():
        for node in ast.walk(ast.parse(source)):
            found = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for module in found:
                first = module.partition(".")[0]
                if first in ("carma_client", "carmad"):
                    path = module.replace(".", "/")
                    assert names & {f"{path}.py", f"{path}.pyi", f"{path}/__init__.py"}, (
                        name,
                        module,
                    )
                else:
                    assert first in sys.stdlib_module_names | theirs, (name, module)


PROGRAM = """
from concurrent.futures import Future, as_completed
from carma_client import AsyncClient, Client, Executor, JobFailed, JobFuture


def train(lr: float, epochs: int = 1) -> str:
    return f"{lr} {epochs}"


def main() -> None:
    client = Client()
    label: str = client.submit(["python", "train.py"], memory_mib=12000, gpus=1)
    job = client.wait(label)
    state: str = job["state"]
    peak: "int | None" = job["memory"]["peak_mib"]
    texts: "list[str]" = [event["text"] for event in client.events(label)]
    with Executor(4, memory_mib=8000) as executor:
        future: JobFuture[str] = executor.submit(train, 0.1, epochs=3)
        plain: Future[str] = future
        results: "list[str]" = list(executor.map(train, [0.1, 0.01]))
        for each in as_completed([future]):
            print(each.result().upper())
    try:
        print(plain.result(), results, state, peak, texts)
    except JobFailed as failed:
        print(failed.job["code"], failed.hint)


async def later() -> None:
    client = AsyncClient()
    job = await client.wait(await client.submit(["true"]))
    print(job["label"], [line async for line in client.logs(job["label"])])
"""
WRONG = """
from carma_client import Client, Executor

Client().submit(["true"], memory_gib=3)
Executor(gpu_count=3)
Executor().submit(len, 3)
"""


@pytest.mark.long
def test_a_program_with_it_is_checked_strictly(wheel: Path, tmp_path: Path) -> None:
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (packages,) = env.glob("lib/python*/site-packages")
    install(wheel, packages, sys.executable)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG)
    argv = [sys.executable, "-m", "mypy", "--strict", "--python-executable", env / "bin/python"]
    for name, wrong in (("program.py", 0), ("wrong.py", 3)):
        ran = subprocess.run([*argv, name], cwd=tmp_path, capture_output=True, text=True)
        assert ran.stdout.count("error:") == wrong, ran.stdout + ran.stderr


def test_it_is_not_to_be_beside_carma_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "carma_client-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: carma-client\nVersion: 0.1.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    error = installed.conflict()
    assert error is not None
    assert "carma-client 0.1.0, the client alone, is installed" in error.message
    assert "pip uninstall carma-client, then install CARMA again" in error.hint
