"""Waits until the job imports torch, then measures its training steps.

Python imports only one `sitecustomize` at startup, so this one also runs the one that it hides.
Nothing here may keep a program from starting.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow


class OnImport:
    """A finder that finds torch like the others, and calls `watch` once it has been loaded."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch" or self._asking:
            return None
        self._asking = True
        try:
            spec = find_spec(name)
            if spec is not None and spec.loader is not None:
                with contextlib.suppress(AttributeError):  # an unexpected kind of loader
                    self._then_watch(spec.loader)
        finally:
            self._asking = False
        return spec

    def _then_watch(self, loader) -> None:  # type: ignore[no-untyped-def]
        load = loader.exec_module

        def exec_module(module) -> None:  # type: ignore[no-untyped-def]
            del loader.exec_module
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            load(module)
            _watch()

        loader.exec_module = exec_module


def _watch() -> None:
    try:
        spec = spec_from_file_location("carma_stages", os.path.join(FOLDER, "stages.py"))  # noqa: PTH118
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)  # Dynamo looks it up by name
        spec.loader.exec_module(module)
        module.watch()
    except Exception as error:  # noqa: BLE001 - the job must continue whatever happens
        with contextlib.suppress(OSError, ValueError):  # closed, or the disk is full
            print(f"carma: stages are not measured: {error!r}", file=sys.stderr)


def _run_the_next() -> None:
    """Run the `sitecustomize` that this one hides."""
    sys.path[:] = [path for path in sys.path if path != FOLDER]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["sitecustomize"])


if "CARMA_JOB_ID" in os.environ:
    sys.meta_path.insert(0, OnImport())
_run_the_next()
