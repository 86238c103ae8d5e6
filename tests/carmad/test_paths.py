"""Which daemon `carma` connects to: never one that another user could have planted."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from carmad import paths


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The socket of a daemon of our own."""
    monkeypatch.delenv("CARMA_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "carma/carmad.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


def test_ones_own_daemon_comes_first(own: Path) -> None:
    assert paths.socket_path() == str(own)
    own.unlink()
    assert paths.socket_path() == paths.SYSTEM_SOCKET


def test_a_socket_where_others_may_put_one_is_not_trusted(own: Path) -> None:
    own.parent.chmod(0o777)
    assert paths.socket_path() == paths.SYSTEM_SOCKET


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_nor_is_one_in_the_directory_of_another(own: Path) -> None:
    os.chown(own.parent, 65534, 65534)
    assert paths.socket_path() == paths.SYSTEM_SOCKET
