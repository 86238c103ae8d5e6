"""Tells a script's own crash, which would happen on a GPU too, from a limit of the trace.

A trace has no GPU, no network and no values on the GPU, and writes no files. What any of these may
have caused is not blamed on the script: a false alarm would be worse than none.
"""

from __future__ import annotations

import ast
import errno
import linecache
import re
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import Any, Iterator

from .answering import is_own, one_line, place_of, text_of
from .foreign import list_imports

_HERE = str(Path(__file__).parent)
# Found in errors that come from what a trace lacks, or has in another form.
_OURS = re.compile(
    r"FakeTensor|meta tensor|data pointer|data_ptr|carma_tracer|SimpleNamespace"
    r"|torch\.(_|cuda|accelerator|backends|distributed)|triton|nccl|nvidia|nvml|driver|libcu|libnv"
    r"|cuda error|no cuda|not compiled with|not implemented|could not run"
    r"|dummy base class|converting to a different layout|not allocated yet|a cuda tensor|\bCARMA_"
    r"|offline|network is|\bconnect|internet|not permitted|permission denied"
    r"|read-?only|(unable|failed) to (open|create|write)|can't start new thread",
    re.IGNORECASE,
)
_MISSING = re.compile("NoneType|empty|at least one|no elements|StopIteration", re.IGNORECASE)
_GPU = re.compile(r"\b(gpu|cuda)s?\b", re.IGNORECASE)
_NEVER = (
    *(MemoryError, NotImplementedError, KeyboardInterrupt, RecursionError, Warning),
    subprocess.SubprocessError,
)
_PATHS = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_NOT_FILES = ("/dev/", "/proc/", "/sys/")


def own_crash(error: BaseException, made_up: bool) -> str:
    """Where and how the script fails: "at train.py:5: NameError: …"; "" if the trace may be the
    cause. `made_up`: what the script got from outside, such as values on the GPU, was not as in a
    real run."""
    if not all(map(_could_be_own, _chain(error))):
        return ""
    if made_up and not _is_certain(error):
        return ""
    if not isinstance(error, SystemExit):
        said, place = one_line(error).replace("'FakeTensor'", "'Tensor'"), place_of(error)
        if not place and not isinstance(error, (ImportError, FileNotFoundError)):
            return ""  # no line of the script's leads to it
        return clause(place, f"{type(error).__name__}: {said}")
    arguments, cause = _of_arguments(error), error.__context__
    said = str(error.code) if isinstance(error.code, str) else arguments
    if cause is None and "huggingface_hub" in sys.modules and not arguments:
        return ""  # it may leave because it got no model: the hub is offline
    if not said and isinstance(cause, Exception):  # which Hydra, Lightning and others print
        return clause(place_of(cause), f"{type(cause).__name__}: {one_line(cause)}")
    status = f"exit status {error.code if isinstance(error.code, int) else 1}"
    return clause(place_of(error), f"{status}: {one_line(said)}" if said else status)


def is_of_shortness(error: BaseException) -> bool:
    """Whether an error in the rest of a run may come from loops that were cut short: data ended
    that never do, or something was never given a value, or never written."""
    if isinstance(error, FileNotFoundError):
        return not _names_no_folder(error)
    never_given = isinstance(error, (StopIteration, UnboundLocalError))
    return never_given or bool(_MISSING.search(text_of(error)))


def missing_torch(script: str) -> str:
    """The crash of a script that begins with an import of torch, in a Python without torch."""
    try:
        body = ast.parse(Path(script).read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return ""
    for one in body:
        if "torch" in list_imports(one):
            what = "ModuleNotFoundError: No module named 'torch'"
            return clause(f"{script}:{one.lineno}", what)
        docstring = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        if not docstring and not isinstance(one, (ast.Import, ast.ImportFrom)):
            return ""  # it may set where modules are found, or install torch
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
    text = text_of(error)
    if isinstance(error, _NEVER) or type(error).__module__.startswith("torch._"):
        return False
    if isinstance(error, AttributeError) and _is_tensor(error):
        return not hasattr(sys.modules["torch"].Tensor, str(error.name))
    if _OURS.search(text) or _is_ours(getattr(error, "obj", None)):
        return False
    if isinstance(error, EOFError):
        return text == "EOF when reading a line"  # by input(): a job has none either
    if isinstance(error, OSError):
        return type(error) in _PATHS and _names_no_file(error)
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] != "torch"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if frames and frames[-1].f_code.co_filename.startswith(_HERE):
        # An operator that fails raises one of these; anything else is a fault of the tracer.
        return isinstance(error, (RuntimeError, IndexError))
    # A library that looks for a GPU in a way of its own finds none.
    return not frames or is_own(frames[-1]) or not _GPU.search(text)


def _is_ours(thing: Any) -> bool:
    """Whether an AttributeError is about one of the tracer's substitutes."""
    return type(thing).__module__.partition(".")[0] == __name__.partition(".")[0]


def _is_tensor(error: AttributeError) -> bool:
    return type(getattr(error, "obj", None)).__name__ == "FakeTensor"


def _is_certain(error: BaseException) -> bool:
    """Whether it would have come up with other values, too."""
    if isinstance(error, SystemExit):
        return bool(_of_arguments(error))
    if isinstance(error, AttributeError):
        thing = getattr(error, "obj", None)
        of_torch = type(thing).__module__.partition(".")[0] == "torch"
        return (of_torch or isinstance(thing, types.ModuleType)) and _is_named_once(error)
    if isinstance(error, NameError):
        return _is_named_once(error)
    return isinstance(error, SyntaxError)


def _is_named_once(error: NameError | AttributeError) -> bool:
    """Whether the missing name is nowhere else in the file, where it could be given a value."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    name = getattr(error, "name", None)  # Python 3.10
    if not name or not frames:
        return False
    text = "".join(linecache.getlines(frames[-1].f_code.co_filename))
    return len(re.findall(rf"\b{re.escape(name)}\b", text)) == 1


def _names_no_file(error: OSError) -> bool:
    missing = error.errno in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR)
    return missing and bool(error.filename) and not str(error.filename).startswith(_NOT_FILES)


def _names_no_folder(error: OSError) -> bool:
    """Whether a file was to be written where there is no folder."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code.co_name == "_needs_parent"


def _of_arguments(error: SystemExit) -> str:
    """What argparse or click say of the script's arguments, if they ended it."""
    of_click = [error.__context__]
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        path = Path(code.co_filename)
        if code.co_name == "error" and (path.name == "argparse.py" or "jsonargparse" in path.parts):
            return str(frame.f_locals.get("message", ""))
        if path.parent.name == "click":  # 8.5 leaves after it has handled it
            of_click += [getattr(value, "__self__", None) for value in frame.f_locals.values()]
    for one in of_click:
        if type(one).__module__ == "click.exceptions":
            return str(getattr(one, "format_message", str)())
    return ""
