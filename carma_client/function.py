"""Python functions as jobs: what is called, how it is kept, and what came of it.

As `python -m`, it is the job's command. Calls and their results are files of the user's, in a
folder that CARMA_CALLS names; a task of an array has the call of its number. The command's
arguments only tell functions apart: CARMA learns the memory of jobs by their commands.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import shutil
import sys
import traceback
import uuid
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from carma_client import JobFailed, Refused, Unknown
from carmad.paths import user_cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from carma_client.client import Client

try:
    import cloudpickle
except ImportError:
    cloudpickle = None

CALLS = "CARMA_CALLS"
FUNCTION = "function"  # the file of what all tasks call
RAISED = ("failed", "out_of_memory")  # states of a job whose function may have raised
DONE = "this call is done: its arguments are no longer kept"
NO_CWD = ["-P"] if sys.version_info >= (3, 11) else []


class JobTraceback(Exception):
    """Where an exception was raised in a job, as its cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def submit_calls(
    client: Client,
    function: Callable[..., Any],
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    options: Mapping[str, Any],
) -> tuple[str, Path]:
    """Submit a job, or an array of several, that calls the function with each of these arguments.
    Returns its label, and the folder of its calls."""
    named = _name_of(function)
    data = [pickle_value(function), *map(pickle_value, calls)]
    digest = hashlib.sha256()
    for each in data:
        digest.update(each)
    folder = Path(user_cache_dir(), "calls", uuid.uuid4().hex)
    folder.mkdir(mode=0o700, parents=True)
    try:
        path = [str(Path(each).absolute()) for each in sys.path]  # "" is this directory
        write_file(folder / FUNCTION, pickle.dumps((path, data[0])))
        for index, call in enumerate(data[1:]):
            write_file(folder / f"{index}.call", call)
        argv = [sys.executable, *NO_CWD, "-u", "-m", "carma_client.function", named]
        own: dict[str, Any] = {"name": named.rpartition(":")[2], **options}
        same_daemon = {"CARMA_SOCKET": str(Path(client.socket).absolute())}
        own["export"] = {**same_daemon, **options.get("export", {}), CALLS: str(folder)}
        label = client.submit([*argv, digest.hexdigest()[:16]], **own)
    except Unknown:
        raise  # the job may be there
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return label, folder


def call_each(function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> list[Any]:
    return [function(*args) for args in calls]


def _name_of(function: Callable[..., Any]) -> str:
    """The name of what does the work."""
    while isinstance(function, partial):
        function = function.args[0] if function.func is call_each else function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None) or "builtins"  # a bound method may have none
    return f"{module}:{named.__qualname__}"


def outcome(job: Any, folder: Path, index: int) -> Any:
    """What the call returned, whose job has ended; raises what it raised, or JobFailed. Only a
    result of the job's last attempt counts."""
    value: Any = None
    attempt, returned, text = 0, False, ""
    with contextlib.suppress(FileNotFoundError):
        attempt, returned, value, text = pickle.loads(_own(folder / f"{index}.result"))
    if attempt == job["attempt"] and returned:
        return value
    if attempt == job["attempt"] and job["state"] in RAISED:
        raise value from JobTraceback(text)
    how = job["state"].replace("_", " ")
    ended = job.get("exit") or {}
    if ended.get("evidence"):
        how += f": {ended['evidence']}"
    elif job["state"] in ("succeeded", "failed") and not ended.get("signal"):
        how += f", as the function ended its process with exit code {ended.get('code')}"
    label = job["label"]
    hint = f"see `carma why {label}` and {job['stderr']}"
    raise JobFailed(f"job {label} has ended without a result: {how}", hint, job)


def pickle_value(value: Any) -> bytes:
    if cloudpickle is not None:
        data: bytes = cloudpickle.dumps(value)
        return data
    file = io.BytesIO()
    try:
        _Pickler(file).dump(value)
    except (AttributeError, pickle.PicklingError) as error:
        hint = "define it in a module of its own, or install cloudpickle"
        raise Refused(f"the call cannot be pickled: {error}", hint, "unpicklable") from None
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Another process has another __main__."""
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the script itself")
        return NotImplemented


def write_file(path: Path, data: bytes) -> None:
    """All of it or nothing, and on disk."""
    part = path.with_suffix(".part")
    with open(part, "wb", opener=partial(os.open, mode=0o600)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _own(path: Path) -> bytes:
    """The file's contents: unpickling runs what they say, so nobody else may have written them."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise Refused(f"{path} is not yours", "who may write to that directory?", "forbidden")
        return file.read()


# in the job


def main() -> None:
    folder = Path(os.environ[CALLS])
    index = os.environ.get("CARMA_ARRAY_TASK_ID", "0")
    attempt = int(os.environ["CARMA_RESTART_COUNT"]) + 1
    result = folder / f"{index}.result"
    try:
        path, function = pickle.loads(_own(folder / FUNCTION))
        call = _own(folder / f"{index}.call")
    except FileNotFoundError:
        sys.exit(DONE)
    sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
    try:
        args, kwargs = pickle.loads(call)
        value = pickle.loads(function)(*args, **kwargs)
        data = pickle_value((attempt, True, value, ""))
    except Exception as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        text = f"In CARMA's job {os.environ['CARMA_JOB_ID']}:\n{text}"
        write_file(result, pickle_value((attempt, False, _portable(error), text)))
        raise
    write_file(result, data)


def _portable(error: Exception) -> Exception:
    """As it is if it can be unpickled."""
    try:
        pickle.loads(pickle_value(error))
    except Exception:  # noqa: BLE001 - an exception may be of any making
        return RuntimeError("".join(traceback.format_exception_only(type(error), error)).strip())
    return error


if __name__ == "__main__":
    main()
