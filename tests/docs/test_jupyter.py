"""A notebook's kernel that takes a GPU through CARMA, as the guide says, and gives it back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from tests.daemon import CARMA, NO_KERNELS, ROOT, Carmad, running, train
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not here")
GUIDE = ROOT / "docs/guides/jupyter.md"
WORK = """
import os
from carmad.gpu.card import Card, paths
(card,) = [Card(path) for path in paths(os.environ["CARMA_EMULATED_DIR"])]
card.attach()
card.allocate(4000)
"""


@pytest.fixture
def carmad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Carmad]:
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS) as carmad:
        with_kernel(carmad, monkeypatch)
        yield carmad


def with_kernel(carmad: Carmad, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's kernel, with this Python."""
    spec = json.loads(GUIDE.read_text().partition("```json\n")[2].partition("```")[0])
    python = {"/home/ada/venv/bin/python": sys.executable, "carma": CARMA[0]}
    spec["argv"] = [python.get(word, word) for word in spec["argv"]]
    folder = carmad.folder / "jupyter/kernels/carma"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(carmad.folder / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(carmad.folder / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(carmad.folder / "ipython"))
    monkeypatch.setenv("CARMA_SOCKET", carmad.socket)


@pytest.fixture
def kernel(carmad: Carmad) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager = KernelManager(kernel_name="carma")
    manager.start_kernel(cwd=str(carmad.work))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def said(client: BlockingKernelClient, cell: str) -> str:
    """What the cell printed, or its error's name."""
    texts: list[str] = []

    def hear(message: dict) -> None:
        if message["msg_type"] == "stream":
            texts.append(message["content"]["text"])

    reply = client.execute_interactive(cell, timeout=PATIENCE_S, output_hook=hear)
    return reply["content"].get("ename") or "".join(texts)


def waiting(carmad: Carmad) -> int:
    job = carmad.submit(*train(memory_mib=1000, seconds=1), exclusive=True, memory_mib=1000)
    carmad.await_state(job, "queued")
    return job


def test_a_notebook_gets_a_gpu_and_gives_it_back(
    carmad: Carmad, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a job of Slurm's, where `carma run` would start it again, without its variables."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    notebook = nbformat.v4.new_notebook()
    cells = (
        f"{WORK}print(sum(tenant.memory_mib for tenant in card.read().tenants))",
        "print(os.environ['CUDA_VISIBLE_DEVICES'])",
    )
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in cells]
    client = NotebookClient(notebook, kernel_name="carma", startup_timeout=int(PATIENCE_S))
    with client.setup_kernel(cwd=str(carmad.work)):
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
        (gpu,) = carmad.gpus()
        (job,) = gpu["jobs"]
        assert job["name"] == "notebook"
        told = carmad.job(job["id"])
        assert told["memory"]["declared_mib"] == 8192
        assert told["requeue"] is False
        next_one = waiting(carmad)
    used, gpus = (cell.outputs[0].text.strip() for cell in notebook.cells)
    assert int(used) >= 4000
    assert gpus == str(gpu["index"])
    assert carmad.ended(next_one)["state"] == "succeeded"
    assert carmad.ended(job["id"])["attempt"] == 1


def test_interrupt_and_restart_are_as_usual(
    carmad: Carmad, kernel: tuple[KernelManager, BlockingKernelClient]
) -> None:
    manager, client = kernel
    assert said(client, f"{WORK}print('held')") == "held\n"
    (first,) = carmad.gpus()[0]["jobs"]
    client.execute("import time; print('begun', flush=True); time.sleep(1000)")
    until(lambda: client.get_iopub_msg(PATIENCE_S)["content"].get("text") == "begun\n", "the cell")
    manager.interrupt_kernel()  # by a message: some front ends signal `carma run` alone
    reply = client.get_shell_msg(PATIENCE_S)
    while reply["parent_header"]["msg_type"] != "execute_request":
        reply = client.get_shell_msg(PATIENCE_S)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    # A kernel that was interrupted may publish what a cell printed after the cell's end.
    until(lambda: said(client, "print(len(card.read().tenants))") == "1\n", "it to live on")

    manager.restart_kernel()
    client.wait_for_ready(timeout=PATIENCE_S)
    assert said(client, "card") == "NameError"
    assert carmad.ended(first["id"])["attempt"] == 1
    (second,) = carmad.gpus()[0]["jobs"]
    assert second["id"] > first["id"]


@pytest.mark.long
def test_a_kernel_that_is_killed_stays_dead(
    carmad: Carmad, kernel: tuple[KernelManager, BlockingKernelClient]
) -> None:
    manager, client = kernel
    next_one = waiting(carmad)
    client.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert carmad.ended(next_one)["state"] == "succeeded"
    until(lambda: not manager.is_alive(), "the kernel's end")
    (before,) = [job for job in carmad.get("/v1/history")["jobs"] if job["name"] == "notebook"]
    assert (before["state"], before["attempt"]) == ("failed", 1)


SERVER = """
import sys
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name="carma")
manager.start_kernel(cwd=sys.argv[1])
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=300)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.long
def test_a_kernel_ends_with_its_server(carmad: Carmad) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(carmad.work)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout
    assert server.stdout.readline() == "ready\n"
    next_one = waiting(carmad)
    os.kill(server.pid, signal.SIGKILL)
    server.communicate()
    assert carmad.ended(next_one)["state"] == "succeeded"


@pytest.mark.long
def test_an_idle_kernel_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, "1xA100-40GB", CARMA_INTERACTIVE__IDLE_S="1", **NO_KERNELS) as carmad:
        with_kernel(carmad, monkeypatch)
        manager = KernelManager(kernel_name="carma")
        manager.start_kernel(cwd=str(carmad.work))
        try:
            until(carmad.processes, "the kernel")
            next_one = waiting(carmad)
            assert carmad.ended(next_one)["state"] == "succeeded"
            assert carmad.ended(1)["exit"]["cause"] == "idle"
            until(lambda: not manager.is_alive(), "the kernel's end")
        finally:
            manager.shutdown_kernel(now=True)
