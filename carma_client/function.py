"""A Python function as a job: what is called, how it is kept, and what came of it.

As `python -m`, it is the job's command. A call and its result are files of the user's; CARMA_CALL
says which. The command's arguments only tell calls apart: CARMA learns the memory of jobs by
their commands.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
import traceback
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from carma_client import JobFailed, Refused, Unknown, requests
from carma_client.steps import run
from carma_client.transport import Daemon
from carmad.paths import user_cache_dir

if TYPE_CHECKING:
    from carma_client.steps import Steps

try:
    import cloudpickle
except ImportError:
    cloudpickle = None

R = TypeVar("R")

CALL = "CARMA_CALL"
RAISED = ("failed", "out_of_memory")  # states of a job whose function may have raised
FETCHED = "the result of this call has been fetched: its arguments are no longer kept"


class Call(Generic[R]):
    """A function that runs as the job with this label."""

    def __init__(self, daemon: Daemon, job: str, path: Path) -> None:
        self.job = job
        self._daemon = daemon
        self._path = path
        self._value: list[R] = []
        self._lock = Lock()

    def result(self) -> R:
        """Waits for the job's end. Returns what the function returned, or raises what it raised;
        JobFailed if the job ended otherwise."""
        with self._lock:  # the first to have the result removes its file
            if not self._value:
                self._value.append(run(outcome(self._daemon, self.job, self._path)))
        return self._value[0]


def submit_call(
    daemon: Daemon, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
) -> Steps[tuple[str, Path]]:
    """The new job's label, and the file with its result to be."""
    if options.get("array") is not None:
        raise TypeError("an array runs a command: call the function once for each job instead")
    name = _name(function)
    data = _pickle((function, args))
    folder = Path(user_cache_dir(), "calls")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    call = folder / f"{uuid.uuid4().hex}.call"
    path = [str(Path(each).absolute()) for each in sys.path]  # "" is this directory
    _write(call, pickle.dumps((path, data)))
    digest = hashlib.sha256(data).hexdigest()[:16]
    argv = [sys.executable, "-P", "-u", "-m", __name__, name, digest]
    own = {"name": name.rpartition(":")[2], **options}
    same_daemon = {"CARMA_SOCKET": str(Path(daemon.socket).absolute())}
    own["export"] = {**same_daemon, **options.get("export", {}), CALL: str(call)}
    try:
        label = yield from requests.submit(daemon, argv, own)
    except Unknown:
        raise  # the job may be there
    except Exception:
        call.unlink(missing_ok=True)
        raise
    return label, call.with_suffix(".result")


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def outcome(daemon: Daemon, label: str, result: Path) -> Steps[Any]:
    """What the function returned; raises what it raised, or JobFailed. Only a result of the job's
    last attempt counts."""
    job = yield from requests.wait(daemon, label)
    try:
        attempt, returned, value = pickle.loads(_own(result))
    except FileNotFoundError:
        attempt, returned, value = 0, False, None
    if attempt == job["attempt"] and returned:
        for path in (result, result.with_suffix(".call")):
            path.unlink(missing_ok=True)
        return value
    if attempt == job["attempt"] and job["state"] in RAISED:
        raise value
    how = job["state"].replace("_", " ")
    if evidence := (job.get("exit") or {}).get("evidence"):
        how += f": {evidence}"
    hint = f"see `carma why {label}` and {job['stderr']}"
    raise JobFailed(f"job {label} has ended without a result: {how}", hint, job)


def _pickle(value: Any) -> bytes:
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
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the script itself")
        return NotImplemented


def _write(path: Path, data: bytes) -> None:
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
    call = Path(os.environ[CALL])
    attempt = int(os.environ["CARMA_RESTART_COUNT"]) + 1
    try:
        path, data = pickle.loads(_own(call))
    except FileNotFoundError:
        sys.exit(FETCHED)
    sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
    try:
        function, args = pickle.loads(data)
        result = _pickle((attempt, True, function(*args)))
    except Exception as error:
        _write(call.with_suffix(".result"), _pickle((attempt, False, _portable(error))))
        raise
    _write(call.with_suffix(".result"), result)


def _portable(error: Exception) -> Exception:
    """As it is if it can be unpickled, with where it was raised."""
    text = "".join(traceback.format_exception(error))
    error.add_note(f"in CARMA's job {os.environ['CARMA_JOB_ID']}:\n{text}")
    try:
        pickle.loads(_pickle(error))
    except Exception:  # noqa: BLE001 - an exception may be of any making
        return RuntimeError(text)
    return error


if __name__ == "__main__":
    main()
