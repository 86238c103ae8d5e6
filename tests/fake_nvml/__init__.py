"""A pytest plugin: `nvml` is a fake driver library that a test scripts (see fake_nvml.c)."""

from __future__ import annotations

import ctypes
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from carmad.gpu import events
from tests.fake_gpu import LIBRARIES, compile_library


class FakeNvml:
    """The world as the fake driver sees it."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = library
        self.world = folder / "world"
        self.log = folder / "log"
        self._c = ctypes.CDLL(str(library))

    def show(self, *parts: str) -> None:
        """From now on, the world is this."""
        draft = self.world.with_suffix(".new")
        draft.write_text("\n".join(textwrap.dedent(part) for part in parts) + "\n")
        draft.replace(self.world)

    def calls(self, function: str) -> list[str]:
        """The GPUs that `function` was called for so far."""
        if not self.log.exists():
            return []
        words = (line.split() for line in self.log.read_text().splitlines())
        return [uuid for called, uuid in words if called == function]

    @property
    def references(self) -> int:
        """How often NVML was initialised and not yet shut down."""
        return self._c.fake_references()

    @property
    def environment(self) -> dict[str, str]:
        """For a process of its own, that is to load the fake library unawares."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.library.parent), "TERM": "xterm"}


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    try:
        compile_library(LIBRARIES[library.name], library)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return library


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    folder = tmp_path / "nvml"
    folder.mkdir()
    fake = FakeNvml(nvml_library, folder)
    monkeypatch.setenv("FAKE_NVML_WORLD", str(fake.world))
    monkeypatch.setenv("FAKE_NVML_LOG", str(fake.log))
    monkeypatch.setattr(events, "_WAIT_MS", 20)  # only makes closing faster
    # The binding loads a library only while it has none.
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml_library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield fake
    assert fake.references == 0, "NVML is still held"
