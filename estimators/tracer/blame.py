"""Tells a script's own crash, which would happen on a GPU too, from a limit of the trace.

A trace has no GPU, no network and no values on the GPU, and writes no files. What any of these may
have caused is not blamed on the script: a false alarm would be worse than none.
"""

from __future__ import annotations

import ast
import errno
import re
import traceback
from pathlib import Path
from typing import Iterator

from .answering import first_line, place_of

_HERE = str(Path(__file__).parent)
# Found in errors that come from what a trace lacks, or has in another form.
_OURS = re.compile(
    r"FakeTensor|meta tensor|data pointer|data_ptr|carma_tracer|SimpleNamespace"
    r"|torch\.(_|cuda|accelerator|backends|distributed)|triton|nccl|nvidia|driver|libcuda"
    r"|cuda error|no cuda|not compiled with|not implemented|could not run|cannot be loaded again"
    r"|offline|network is|\bconnect|internet|https?://|not permitted|permission denied",
    re.IGNORECASE,
)
# These do not depend on values.
_CERTAIN = (NameError, SyntaxError, AttributeError, ImportError, FileNotFoundError)
_PATHS = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_NOT_FILES = ("/dev/", "/proc/", "/sys/")


def own_crash(error: BaseException, made_up: bool) -> str:
    """Where and how the script fails: "at train.py:5: NameError: …"; "" if the trace may be the
    cause. `made_up`: the script has read values from the GPU, which the trace invents."""
    if not all(map(_could_be_own, _chain(error))):
        return ""
    if made_up and not isinstance(error, _CERTAIN):
        return ""
    what = _left(error) if isinstance(error, SystemExit) else None
    return clause(place_of(error), what or f"{type(error).__name__}: {first_line(error)}")


def missing_torch(script: str) -> str:
    """The crash of a script that imports torch at its top level, in a Python without torch."""
    try:
        body = ast.parse(Path(script).read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return ""
    for one in body:
        names = [alias.name for alias in one.names] if isinstance(one, ast.Import) else []
        if isinstance(one, ast.ImportFrom) and not one.level:
            names = [one.module or ""]
        if any(name.partition(".")[0] == "torch" for name in names):
            what = "ModuleNotFoundError: No module named 'torch'"
            return clause(f"{script}:{one.lineno}", what)
    return ""


def clause(place: str, what: str) -> str:
    """Completes "your script stops …"."""
    return f"at {place}: {what}" if place else f"with {what}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and what was being handled when it was raised."""
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _could_be_own(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, NotImplementedError, KeyboardInterrupt)):
        return False
    if type(error).__module__.startswith("torch._") or _OURS.search(str(error)):
        return False
    if isinstance(error, OSError):
        return type(error) in _PATHS and _names_no_file(error)
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] != "torch"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if frames and frames[-1].f_code.co_filename.startswith(_HERE):
        # An operator that fails raises one of these; anything else is a fault of the tracer.
        return isinstance(error, (RuntimeError, IndexError))
    return True


def _names_no_file(error: OSError) -> bool:
    missing = error.errno in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR)
    return missing and bool(error.filename) and not str(error.filename).startswith(_NOT_FILES)


def _left(error: SystemExit) -> str:
    """How a script exits by itself, with what argparse or click say of its arguments."""
    said = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_name == "error" and Path(code.co_filename).name == "argparse.py":
            said = str(frame.f_locals.get("message", ""))
    explain = getattr(error.__context__, "format_message", None)
    if not said and explain is not None:
        said = str(explain())  # click's
    if isinstance(error.code, str):
        said = error.code
    status = f"exit status {error.code if isinstance(error.code, int) else 1}"
    return f"{status}: {first_line(said)}" if said else status
