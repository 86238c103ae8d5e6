"""Tells a script's own crash, which would happen on a GPU too, from a limit of the trace.

A trace has no GPU, no network and no values on the GPU, and writes no files. What any of these may
have caused is not blamed on the script: a false alarm would be worse than none.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import re
import subprocess
import sys
import traceback
import types
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from .answering import chain, is_own, one_line, place_of, text_of
from .foreign import list_imports
from .report import Stop

if TYPE_CHECKING:
    from .recording import Recorder
    from .rest import Ending

ASSUMED = " taken to "  # in notes
# What a script hardly raises itself, and so no decision of its own on a number.
_FIRM = (TypeError, AttributeError, NameError, ImportError, FileNotFoundError)
_OF_SHAPES = re.compile("(invalid index of a 0-dim|too many indices for) tensor")
_OWN = __name__.partition(".")[0]  # the tracer
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


def judge(error: BaseException, why: str, recorder: Recorder, rest: Ending) -> Stop:
    """Whether a script that stops with this error would do so on a GPU, too. `why`: for a refusal.
    In the rest of a run loops are cut short, which may be the reason as well."""
    # Frameworks that clean up after an error may read values then.
    made_up = rest.begun or (recorder.made_up and error is not recorder.failed)
    crash, certain = "", not made_up
    with contextlib.suppress(Exception):  # of its own making
        crash = own_crash(error)
        certain = certain or (bool(crash) and is_certain(error))
    raiser = _raiser(error)
    firm = _package(raiser) == "torch" or raiser == f"{__package__}.checkpoints"
    firm = firm or error is recorder.refused or isinstance(error, _FIRM)
    firm = firm or bool(_OF_SHAPES.match(text_of(error)))
    numbers = rest.begun or any(rest.asked.values())
    if (numbers and _lacks_value(error)) or (rest.begun and _lacks_file(error)):
        firm, certain = False, certain and not rest.begun
    provable = not recorder.deceived and (firm or not numbers)
    return stop(why, recorder, rest, crash=crash, certain=certain, provable=provable)


def stop(why: str, recorder: Recorder, rest: Ending, **verdict: Any) -> Stop:
    return Stop(
        why,
        asked=rest.asked,
        skipped=recorder.skipped,
        progress=recorder.operators,
        assumed="; ".join(note for note in recorder.notes if ASSUMED in note),
        **verdict,
    )


def own_crash(error: BaseException) -> str:
    """Where and how the script fails: "at train.py:5: NameError: …"; "" if the trace may be the
    cause."""
    if not all(map(_could_be_own, chain(error))):
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


def is_certain(error: BaseException) -> bool:
    """Whether it would have come up whatever the script got from outside, such as values on the
    GPU."""
    if isinstance(error, SystemExit):
        return bool(_of_arguments(error))
    if isinstance(error, AttributeError):
        thing = getattr(error, "obj", None)
        known = _package(type(thing).__module__) == "torch" or isinstance(thing, types.ModuleType)
        return known and _is_named_once(error)
    if isinstance(error, NameError):
        return _is_named_once(error)
    return isinstance(error, SyntaxError)


def _lacks_value(error: BaseException) -> bool:
    """Whether it may come from numbers that were made up, or from loops that were cut short: data
    ended that never do, or something was never given a value."""
    never_given = isinstance(error, (StopIteration, UnboundLocalError))
    return never_given or bool(_MISSING.search(text_of(error)))


def _lacks_file(error: BaseException) -> bool:
    """Whether a file is missing, in a folder that exists: the trace may not have written it."""
    frame = _innermost(error)
    missing = isinstance(error, FileNotFoundError)
    return missing and (frame is None or frame.f_code.co_name != "_needs_parent")


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


def _innermost(error: BaseException) -> FrameType | None:
    """Where it was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1] if frames else None


def _could_be_own(error: BaseException) -> bool:
    text = text_of(error)
    if isinstance(error, _NEVER) or type(error).__module__.startswith("torch._"):
        return False
    kind = type(getattr(error, "obj", None))  # of what lacks an attribute
    if kind.__name__ == "FakeTensor":
        return not hasattr(sys.modules["torch"].Tensor, str(getattr(error, "name", "")))
    if _OURS.search(text) or _package(kind.__module__) == _OWN:
        return False
    if isinstance(error, EOFError):
        return text == "EOF when reading a line"  # by input(): a job has none either
    if isinstance(error, OSError):
        is_path = error.filename and not str(error.filename).startswith(_NOT_FILES)
        return type(error) in _PATHS and bool(is_path)
    if isinstance(error, ImportError):
        return _package(error.name or "") != "torch"
    if _package(_raiser(error)) == _OWN:
        # An operator that fails raises one of these; anything else is a fault of the tracer.
        return isinstance(error, (RuntimeError, IndexError))
    frame = _innermost(error)  # a library that looks for a GPU in a way of its own finds none
    return frame is None or is_own(frame) or not _GPU.search(text)


def _raiser(error: BaseException) -> str:
    """The module whose code raised it; "" if none did."""
    frame = _innermost(error)
    return str(frame.f_globals.get("__name__")) if frame is not None else ""


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_named_once(error: NameError | AttributeError) -> bool:
    """Whether the missing name is nowhere else in the file, where it could be given a value."""
    frame, name = _innermost(error), getattr(error, "name", None)  # Python 3.10
    if not name or frame is None:
        return False
    text = "".join(linecache.getlines(frame.f_code.co_filename))
    return len(re.findall(rf"\b{re.escape(name)}\b", text)) == 1


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
