"""Patches to libraries, applied when the script imports them. They are files outside the tracer,
which CARMA names in `Options`; docs/plugins.md says what is in one. What does not fit the installed
version of the library is left out, with a note.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Sequence

from . import imports, substitutes
from .scratch import path_for_kernel

if TYPE_CHECKING:
    from .recording import Recorder

_HERE = Path(__file__).parent


class Tracer:
    """What a patch may use of the tracer, with what docs/plugins.md names of the Recorder.

    is_saved: whether a file has what `torch.save` was given, which `torch.load` gives back
    path_for_kernel: the path by which C code finds a file, which Python may have written
    """

    path_for_kernel = staticmethod(path_for_kernel)

    def __init__(self, recorder: Recorder, is_saved: Callable[[Any], bool]) -> None:
        self.recorder, self.is_saved = recorder, is_saved

    def answer(self, operator: Any, rule: Callable[..., Any]) -> None:
        """Let `rule(recorder, *arguments)` make the outputs of an operator of `torch.ops`."""
        substitutes.ANSWERS[operator] = rule

    def replace(self, owner: Any, **attributes: Any) -> None:
        """Set attributes that a module or class has. Raises AttributeError if it has none such."""
        for name in attributes:
            getattr(owner, name)
        for name, value in attributes.items():
            setattr(owner, name, value)


class _Patches:
    def __init__(self, files: Sequence[Sequence[str]], tracer: Tracer) -> None:
        self._files, self._tracer = files, tracer
        self._unread = {library for library, _ in files}
        self._stand_ins: set[str] = set()
        for library in self._unread & sys.modules.keys():
            self._read(library)

    def prepare(self, name: str) -> None:
        """Call this before a module is imported."""
        for library in [one for one in self._unread if f"{name}.".startswith(f"{one}.")]:
            self._read(library)
        spec = importlib.util.find_spec(name) if name in self._stand_ins else None
        if spec is not None:
            spec.loader = None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            if spec.parent:
                setattr(sys.modules[spec.parent], name.rpartition(".")[2], module)

    def _read(self, library: str) -> None:
        self._unread.remove(library)
        for path in (path for of, path in self._files if of == library):
            declared: dict[str, Any] = {"__name__": f"{__package__}.patch"}
            attempt = partial(self._attempt, library, declared)
            attempt(_execute, path, declared)
            stand_ins = declared.get("STAND_INS", {})
            self._stand_ins.update(stand_ins)
            for name, function in {**declared.get("PATCHES", {}), **stand_ins}.items():
                imports.after_import(name, partial(self._patch, partial(attempt, function)))

    def _patch(self, attempt: Callable[..., None], module: Any) -> None:
        attempt(module, self._tracer)

    def _attempt(self, library: str, declared: Any, do: Callable[..., None], *args: Any) -> None:
        try:
            do(*args)
        except Exception as error:  # noqa: BLE001  foreign code
            self._tracer.recorder.note(
                f"the patch for {library} {declared.get('MADE_FOR', '')} does not fit"
                f" {_version(library)}: left out ({type(error).__name__}: {error!s:.200})"
            )


def _execute(path: str, declared: Any) -> None:
    """Its code passes for the tracer's: an error in it is not the script's."""
    name = _HERE / "patches" / Path(path).name
    exec(compile(Path(path).read_bytes(), str(name), "exec"), declared)


def _version(library: str) -> str:
    """As it is installed."""
    try:
        return importlib.metadata.version(library.partition(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return "this version"


def install(
    files: Sequence[Sequence[str]],
    recorder: Recorder,
    is_saved: Callable[[Any], bool] = lambda file: False,
) -> None:
    """`files`: of each patch, the library (a module) whose import has it read, and its file."""
    imports.before_imports(_Patches(files, Tracer(recorder, is_saved)).prepare)
