"""Confines a traced script with the kernel's help, and what replaces it where that is missing.

On Linux 5.13 or newer (Landlock, seccomp; x86-64 and ARM64), for this process and its children:
nothing is made, changed or removed by path but in /dev/shm, where semaphores live, nor are modes,
owners, times, flags and attributes; devices but /dev/null open for reading only, so no GPU is
reached; no socket is opened, of any family, and no queue, semaphore or shared memory of System V or
POSIX; no process outside is traced, nor its memory, limits, priority or CPUs touched, and from
Linux 6.12 on it gets no signal. Of ioctls, only those are left that ask something of a terminal or
a pipe, or set a flag of a descriptor. What is printed goes to the daemon, which keeps the end.

/dev/shm is the trial's own where the daemon is root (`carmad.estimates.attendant`). Elsewhere what
the script leaves there stays, and it can write to what the user's other processes have there.
A file can still be locked for as long as the script runs, and a terminal of the user's be read.

On older kernels an audit hook refuses the same to Python code, files that `scratch` keeps excepted,
SQLite databases but those in memory, and to start other programs at all. A C library that opens
paths by itself (HDF5, Arrow, OpenCV) is not stopped there, and signals are not either.

Everywhere: no core dump, no file over 1 GiB, host memory and CPU time limited, lower priority.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import struct
import sys
from contextlib import suppress
from typing import Any, List, Sequence, Tuple

from .scratch import FILE_BYTES, FileIO, Tree

# Switches off network access and tracking in libraries that have a variable for it, and threads
# that move weights to the GPU, as only the main thread is traced.
ASKED = {
    "CLEARML_OFFLINE_MODE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
    "HF_HUB_OFFLINE": "1",
    "MKL_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "NEPTUNE_MODE": "debug",
    "OMP_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
}
GPUS = "CUDA_VISIBLE_DEVICES"  # seen: that CARMA chose some, or which ones the user did
NICE = 10
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on both machines
_WRITE_FILE, _REMOVE_FILE, _MAKE_REG, _TRUNCATE = 1 << 1, 1 << 5, 1 << 8, 1 << 14
_EVERY_WRITE = 0x1FF2  # write a file; remove or make anything: Landlock ABI 1
_REFER = 1 << 13

# Linux's numbers (asm/unistd_64.h, asm-generic/unistd.h) for: socket, chmod, fchmod, fchmodat,
# fchmodat2, chown, lchown, fchown, fchownat, setxattr ×3, removexattr ×3, setxattrat,
# removexattrat, file_setattr, utime, utimes, futimesat, utimensat, truncate,
# shmget, shmat, shmctl, semget, semop, semtimedop, semctl, msgget, msgsnd, msgrcv, msgctl,
# mq_open, mq_unlink, add_key, request_key, keyctl,
# io_uring_setup (it opens sockets without the syscall); and to root: mount_setattr, sethostname,
# settimeofday, clock_settime.
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {
    "x86_64": (
        *(41, 90, 91, 268, 452, 92, 94, 93, 260, 188, 189, 190, 197, 198, 199, 463, 466, 469),
        *(132, 235, 261, 280, 76, 29, 30, 31, 64, 65, 220, 66, 68, 69, 70, 71, 240, 241),
        *(248, 249, 250, 425, 442, 170, 164, 227),
    ),
    "aarch64": (
        *(198, 52, 53, 452, 55, 54, 5, 6, 7, 14, 15, 16, 463, 466, 469),
        *(88, 45, 194, 196, 195, 190, 193, 192, 191, 186, 189, 188, 187, 180, 181),
        *(217, 218, 219, 425, 442, 161, 170, 112),
    ),
}
# Refused to `is_alone`: kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo,
# pidfd_send_signal, setpgid, setsid.
_OUTWARD = {
    "x86_64": (62, 200, 234, 129, 297, 424, 109, 112),
    "aarch64": (129, 130, 131, 138, 240, 424, 154, 157),
}
# What is refused but for certain arguments: ioctl; prlimit64, sched_setparam, sched_setscheduler,
# sched_setattr, sched_setaffinity, migrate_pages, move_pages of a process's own; setpriority,
# ioprio_set, which name a process, a group or a user by their first argument.
_IOCTL, _OF_PROCESS, _SETPRIORITY, _IOPRIO_SET = {
    "x86_64": (16, (302, 142, 144, 314, 203, 256, 279), 141, 251),
    "aarch64": (29, (261, 118, 119, 274, 122, 238, 239), 140, 30),
}.get(os.uname().machine, (0, (), 0, 0))
# TCGETS, TCGETS2, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC
_IOCTLS = (0x5401, 0x802C542A, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x5452)
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1


def show_to_python(name: str, value: str) -> None:
    """Set an environment variable for Python code alone: libraries see an empty one."""
    os.environ[name] = ""
    view: Any = os.environ
    view._data[view.encodekey(name)] = view.encodevalue(value)


def limit(host_memory_mib: int, cpu_s: float) -> None:
    """Bound what this process may use, whatever an outer limit leaves it, for good."""
    limits = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_DATA, host_memory_mib * 2**20),
        (resource.RLIMIT_CPU, int(cpu_s) + 1),
    )
    for which, most in limits:
        hard = resource.getrlimit(which)[1]
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(which, (most, most))
    tasks = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # one each for what it writes
    os.nice(NICE)


def confine(*, is_alone: bool = False) -> bool:
    """Drop what a trace does not need; call this before there are threads. False if only the
    audit hook is available. `is_alone`: it sends no signals either, whatever the kernel, and stays
    in its process group, by which all of it is ended."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and _landlock() and _seccomp(is_alone):
        return True
    sys.addaudithook(_refuse)
    return False


def _landlock() -> bool:
    abi = _libc.syscall(_CREATE_RULESET, None, 0, 1)
    if abi < 1:
        return False
    writes = _EVERY_WRITE | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    scoped = 3 if abi >= 6 else 0  # abstract sockets and signals stay among its own processes
    attributes = struct.pack("=QQQ", writes, 0, scoped)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = _libc.syscall(_CREATE_RULESET, attributes, size, 0)
    if rules < 0:
        return False
    try:
        for path, allowed in (
            ("/dev/null", _WRITE_FILE | _TRUNCATE),
            ("/dev/shm", _WRITE_FILE | _TRUNCATE | _MAKE_REG | _REMOVE_FILE),
        ):
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
                rule = struct.pack("=Qi", allowed & writes, fd)
                _libc.syscall(_ADD_RULE, rules, 1, rule, 0)
                os.close(fd)
        return bool(_libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


_Code = List[Tuple[int, int, int, int]]
_LOAD, _EQUAL, _AT_LEAST, _GIVE = 0x20, 0x15, 0x35, 0x06  # BPF: ld [k], jeq, jge, ret
_ALLOW: _Code = [(_GIVE, 0, 0, 0x7FFF0000)]
_REFUSE: _Code = [(_GIVE, 0, 0, 0x00050000 | 1)]  # 1: EPERM


def _seccomp(is_alone: bool) -> bool:
    """Refuse system calls with EPERM, and all calls of a foreign ABI."""
    machine = os.uname().machine
    if machine not in _REFUSED:
        return False
    mine = (0, os.getpid())
    code: _Code = [
        (_LOAD, 0, 0, 4),  # seccomp_data.arch
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        *_REFUSE,
        (_LOAD, 0, 0, 0),  # seccomp_data.nr
        (_AT_LEAST, 0, 1, 0x40000000),  # x32, which has numbers of its own
        *_REFUSE,
    ]
    for number in _REFUSED[machine] + (_OUTWARD[machine] if is_alone else ()):
        code += _when(number, _REFUSE)
    code += _when(_IOCTL, _if_one_of(1, _IOCTLS) + _ALLOW)
    for number in _OF_PROCESS:
        code += _when(number, _if_one_of(0, mine) + _ALLOW)
    code += _when(_SETPRIORITY, _if_one_of(0, (_PRIO_PROCESS,)) + _if_one_of(1, mine) + _ALLOW)
    code += _when(_IOPRIO_SET, _if_one_of(0, (_IOPRIO_WHO_PROCESS,)) + _if_one_of(1, mine) + _ALLOW)
    code += _ALLOW
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(packed)
    header = struct.pack("@HP", len(code), ctypes.addressof(buffer))
    return bool(_libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0) == 0)


def _when(number: int, then: _Code) -> _Code:
    """Jumps count from the instruction after their own."""
    return [(_EQUAL, 0, len(then), number), *then]


def _if_one_of(argument: int, values: Sequence[int]) -> _Code:
    """Go on; refuse any other. The kernel takes no more of these arguments than their lower half,
    which comes first on both machines."""
    tests = [(_EQUAL, len(values) - n, 0, value) for n, value in enumerate(values)]
    return [(_LOAD, 0, 0, 16 + 8 * argument), *tests, *_REFUSE]


# What is refused of the events that Python audits.
_CHANGES = (
    *("mkdir", "rmdir", "remove", "rename", "link", "symlink", "truncate"),
    *("chmod", "chown", "utime", "setxattr", "removexattr"),
)
_EVENTS = {
    **{f"os.{name}": "changes no files" for name in _CHANGES},
    **dict.fromkeys(
        ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"),
        "starts no programs where Landlock is missing",
    ),
    "socket.__new__": "opens no sockets",
}
NOWHERE = "/dev/null/program"  # `following` runs one in the process that would become this
_BY_OS_OPEN = (Tree.open_file.__code__, FileIO.__init__.__code__)
_FD = re.compile(r"/proc/self/fd/\d+")


def _refuse(event: str, args: Any) -> None:
    """An audit hook (PEP 578)."""
    why = _EVENTS.get(event)
    if event == "open":
        path, mode, flags = args
        if isinstance(path, int) or not (flags or 0) & WRITES:
            return
        if mode is not None and sys._getframe(1).f_code in _BY_OS_OPEN:
            return  # which is asked here as well
        # It may be of a class of the script's, with methods of its own.
        path = bytes.decode(path) if isinstance(path, bytes) else str.__str__(path)
        is_kept = _FD.fullmatch(path) and os.readlink(path).startswith("/memfd:")  # by `scratch`
        if path != os.devnull and not is_kept:
            why = f"writes no files: {path}"
    elif event == "sqlite3.connect" and os.fsdecode(args[0]) != ":memory:":
        why = f"opens no databases: {os.fsdecode(args[0])}"
    if why and not (args and args[0] is NOWHERE):
        raise PermissionError(1, f"a traced script {why}")
