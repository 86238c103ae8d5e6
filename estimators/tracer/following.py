"""Follows the processes that a script starts: each that puts something on a GPU answers for itself.

A process that is forked is traced from then on, with a recording of its own. Those that
`multiprocessing` starts in another way (spawn, forkserver) are forked as well, and so are programs
of the script's own Python (`subprocess`, `os.system`, `os.exec…`), which saves importing torch
again: their program is run in the fork, with their arguments, environment and files, and the
modules of the script's own are forgotten. As always in PyTorch, no backward pass works in a process
that was forked after one: those are traced until then. Other programs run as they are, confined.
They can write nothing, and what a process writes, only that and what it starts can see.

Of a launcher's processes that have a GPU each, the first stands for all.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import multiprocessing.context
import multiprocessing.pool
import os
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from multiprocessing.popen_fork import Popen as Fork
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from stat import S_ISFIFO
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable, Iterator, NoReturn, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import device, imports, scratch
from .answering import HIGH, exit_now, is_own, is_own_file
from .command import ASSIGNMENT, PYTHON, Unreadable, interpreter, parse, unwrap, whole
from .confine import ASKED, GPUS, NOWHERE, show_to_python

if TYPE_CHECKING:
    from .script import Trace

_LOOKS = frozenset(("git", what) for what in ("rev-parse", "describe", "log"))
_SHELL = frozenset("|&;<>$`()*?[]#~\n")  # what a shell does more than start a program
_BETWEEN = (__file__, os.__file__, subprocess.__file__)
_traces: list[Trace] = []


def install(trace: Trace) -> None:
    _traces[:] = [trace]
    program, process_kind, pool = cast(Any, (subprocess.Popen, BaseProcess, multiprocessing.pool))
    path, fork, execute = list(sys.path), os.fork, program._execute_child
    bootstrap, signature = process_kind._bootstrap, inspect.signature(execute)

    def prepare_fork() -> Callable[[], None]:
        """What to call in the new process."""
        own_s = trace.own_s

        def begin() -> None:
            scratch.on_change(trace.recorder.deceived.notice)
            trace.begin_process(own_s)

        return begin

    def fork_() -> int:
        begin = prepare_fork()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # there is a thread, which waits for the deadline
            pid = fork()
        if pid == 0:
            begin()
        return pid

    def execute_child(process: Any, *args: Any) -> None:
        bound = signature.bind(process, *args)
        given, command = bound.arguments, bound.arguments["args"]
        env = _decode(os.environ if given["env"] is None else given["env"])
        words = _python(command, given["shell"], env)
        if words is None:
            given["cwd"] = given["cwd"] and scratch.path_for_kernel(given["cwd"])
        else:
            flush()
            begin, cwd, before = prepare_fork(), given["cwd"], given["preexec_fn"]

            def run() -> NoReturn:
                """In the new process, which has its standard input, output and errors."""
                begin()
                if before is not None:
                    before()
                _leave_pipes()
                trace.run_program(words, lambda: _prepare(cwd, env, path))

            given.update(args=[NOWHERE], executable=NOWHERE, shell=False, cwd=None)
            given.update(preexec_fn=run, restore_signals=False)
        with _noticed(trace, command):
            execute(*bound.args)

    def exec_(real: Callable[..., None]) -> Callable[..., None]:
        def call(path_: Any, args: Any, *given: Any) -> None:
            env = _decode(*(given or [os.environ]))
            words = _python([path_, *args[1:]], False, env)
            if words is not None:
                trace.run_program(words, lambda: _prepare(None, env, path))
            with _noticed(trace, args):
                real(path_, args, *given)

        return call

    def bootstrap_(process: Any, *args: Any, **kwargs: Any) -> int:
        run = process.run
        process.run = lambda: trace.guard(run)
        return bootstrap(process, *args, **kwargs)

    def exit_(status: int) -> NoReturn:
        if status == 0:
            trace.finish_process()
        exit_now(status)

    def system(command: Any) -> int:
        status = subprocess.call(command, shell=True)
        return status << 8 if status >= 0 else -status

    os.fork, os._exit, os.system = fork_, exit_, system
    program._execute_child = execute_child
    for name in ("execv", "execve"):
        setattr(os, name, exec_(getattr(os, name)))
    process_kind._bootstrap = bootstrap_
    for kind in ("SpawnProcess", "ForkServerProcess"):
        getattr(multiprocessing.context, kind)._Popen = staticmethod(Fork)
    spawn = sys.modules["torch.multiprocessing.spawn"]
    spawn._wrap = lambda fn, i, args, error_file: fn(i, *args)  # type: ignore[attr-defined]
    _pass_on(pool.ExceptionWithTraceback)
    imports.after_import(
        "concurrent.futures.process", lambda module: _pass_on(module._ExceptionWithTraceback)
    )
    for kind in (FakeTensor, torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduce)


def name_of_gpu(index: int) -> str:
    """As CUDA_VISIBLE_DEVICES names it."""
    names = os.environ.get(GPUS, "").split(",")
    return names[index].strip() if index < len(names) else str(index)


def stands_aside(gpus: int) -> bool:
    """Whether this process is one of a launcher's that have a GPU each, and not the first."""
    return 0 < whole(os.environ.get("LOCAL_RANK", ""), 0) < device.visible(gpus)


def _pass_on(kind: Any) -> None:
    """A pool's task has failed: in a process with something on a GPU, that is how it ends."""
    make = kind.__init__

    def init(self: Any, error: BaseException, *args: Any) -> None:
        _traces[0].judge_task(error)
        make(self, error, *args)

    kind.__init__ = init


# -- programs


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script's
            stream.flush()


def _decode(env: Any) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}


def _python(command: Any, shell: bool, env: dict[str, str]) -> list[str] | None:
    """The script or -m or -c, and its arguments, if this starts a program of the same Python."""
    is_one = isinstance(command, (str, bytes, os.PathLike))
    words: list[str] = list(map(os.fsdecode, [command] if is_one else command))
    if shell:
        if _SHELL & set(words[0]):
            return None
        with contextlib.suppress(ValueError):  # an open quotation
            words = shlex.split(words[0])
    words = words[words[:1] == ["env"] :]
    while words and ASSIGNMENT.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    words = unwrap(words)
    path = shutil.which(words[0], path=env.get("PATH")) if words else None
    if path is not None and not _is_ours(path):  # a script may name Python
        words = [*interpreter(path), path, *words[1:]]
        path = shutil.which(words[0], path=env.get("PATH"))
    if path is not None and _is_ours(path):
        with contextlib.suppress(Unreadable):
            return list(parse(words).script)
    return None


def _is_ours(path: str) -> bool:
    same = Path(path).absolute().parent == Path(sys.executable).parent
    return same and bool(PYTHON.fullmatch(Path(path).name))


@contextlib.contextmanager
def _noticed(trace: Trace, command: Any) -> Iterator[None]:
    """Around the start of a program. Those that libraries start, to ask the machine something, do
    not count."""
    looks = _only_looks(command)
    if not looks and _is_called_by_script(sys._getframe(3)):
        trace.recorder.deceive()
    try:
        yield
    except OSError:  # where Landlock is missing no program starts
        if looks:
            trace.recorder.deceive()
        raise


def _only_looks(command: Any) -> bool:
    """Whether it asks git which version of the program this is, as many scripts do to log it:
    which needs to write nothing."""
    if isinstance(command, str) and not _SHELL & set(command):
        command = command.split()
    return isinstance(command, (list, tuple)) and tuple(command[:2]) in _LOOKS


def _is_called_by_script(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    return frame is not None and (is_own(frame) or "GPUtil" in frame.f_code.co_filename)


def _leave_pipes() -> None:
    """Close the pipes that a new program would not inherit: their readers would wait for ever."""
    gc.enable()  # `subprocess` has disabled it
    null = os.open(os.devnull, os.O_RDWR)
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        with contextlib.suppress(OSError):  # it is closed by now
            if 2 < fd < HIGH and not os.get_inheritable(fd) and S_ISFIFO(os.fstat(fd).st_mode):
                os.dup2(null, fd, inheritable=False)
    for target, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        setattr(sys, name, os.fdopen(target, mode, 1, closefd=False))


def _prepare(cwd: Any, env: dict[str, str], path: list[str]) -> None:
    """As in a new program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked = {name: os.environ[name] for name in ASKED if name in os.environ}
    os.environ.clear()
    os.environ.update({**asked, **env})
    if GPUS in env:
        show_to_python(GPUS, env[GPUS])
    if cwd is not None:
        os.chdir(cwd)
    more = [one for one in env.get("PYTHONPATH", "").split(os.pathsep) if one not in path]
    sys.path[:] = [*filter(None, more), *path]
    for name, module in list(sys.modules.items()):
        own = getattr(module, "__dict__", {})  # some have any attribute
        places = [own.get("__file__"), *(own.get("__path__") or ())]
        if any(isinstance(one, str) and is_own_file(one) for one in places):
            del sys.modules[name]
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)


# -- tensors that are passed on


def _reduce(tensor: Any) -> Any:
    """On the CPU by value: the kernel refuses the sockets by which memory would be shared."""
    if isinstance(tensor, FakeTensor):
        return _alias, (tensor.shape, tensor.stride(), tensor.dtype)
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return _copy, (flat, tensor.shape, tensor.dtype, type(tensor) is torch.nn.Parameter)


def _alias(*form: Any) -> Any:
    return _traces[0].recorder.alias(*form)


def _copy(flat: bytes, shape: Any, dtype: Any, is_parameter: bool) -> Any:
    tensor = torch.empty(shape, dtype=dtype)
    if flat:
        tensor.view(-1).copy_(torch.frombuffer(bytearray(flat), dtype=dtype))
    return torch.nn.Parameter(tensor, dtype.is_floating_point) if is_parameter else tensor
