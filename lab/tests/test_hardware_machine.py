"""The machine that the campaign visits has to be its own."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from carmad import paths
from carmad.errors import CarmaError
from lab.hardware import machine
from lab.hardware.visit import Visit
from tests.waiting import until


def test_the_campaign_starts_no_carmad_beside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "sock")
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    visit = Visit(tmp_path, "cost", rehearse=False)
    machine.refuse_beside_another(visit)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    machine.refuse_beside_another(visit)
    Path(path).unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(CarmaError, match=f"a carmad listens at {path} .pid {os.getpid()}"):
            machine.refuse_beside_another(visit)
        assert not select.select([other], [], [], 0)[0], "nobody has connected"
        # systemd holds the socket until somebody connects: then there is no carmad yet.
        (tmp_path / "systemd").symlink_to("/bin/sleep")
        manager = subprocess.Popen([tmp_path / "systemd", "1000"], pass_fds=[other.fileno()])
    try:
        until(lambda: psutil.Process(manager.pid).name() == "systemd")
        machine.refuse_beside_another(visit)
    finally:
        manager.kill()
        manager.wait()
