"""The cgroups of attempts (v2): who is in one, what it may use, and what happened in it.

An attempt is its cgroup: the kernel keeps it, no process can leave it by itself, and reading it
waits for nobody. Under systemd it is below the unit of the fork server:

    carma-jobs-1f3c.service/carma-job-7-1  the job, with its limits
    carma-jobs-1f3c.service/supervisors    with the server: a limit of a job's must not end them

or, of an attempt that has a unit of its own:

    carma-job-7-1.service/job              the job, with its limits
    carma-job-7-1.service/supervisors      its own
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from carmad.attempt.proc import process_stat, read_file, tell_kernel, write_file

MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
SERVER = "carma-jobs-"  # the beginning of the name of a fork server's unit
OURS = "supervisors"
CONTROLLERS = (b"+memory", b"+cpu")
# Of memory.stat: what the kernel can take back without ending anybody.
RECLAIMABLE = (b"active_file", b"inactive_file", b"slab_reclaimable")
KEPT_BYTES = b"%d" % (16 << 20)  # of memory for a supervisor, or for a server and some of them


def cgroup_of(pid: int | str) -> str | None:
    """The path of this process's cgroup. None: it has none that we can see, or is gone."""
    try:
        lines = read_file(f"/proc/{pid}/cgroup").decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("0::"):
            for mount in MOUNTS:
                if Path(f"{mount}{line[3:]}/cgroup.procs").exists():
                    return mount + line[3:].rstrip("/")
    return None


def own_cgroup() -> str | None:
    return cgroup_of("self")


def name_of(job: int | str, attempt: int | str) -> str:
    """Of an attempt's cgroup where it has no unit; its unit has the same name with a suffix."""
    return f"carma-job-{job}-{attempt}"


def is_of(cgroup: str, job: int, attempt: int) -> bool:
    """Whether it is that attempt's, by its name, which only root can give."""
    return Path(cgroup).name.removesuffix(".service") == name_of(job, attempt)


def unit_cgroup(prefix: str = "carma-job-") -> str | None:
    """The cgroup of the unit of that name that this process runs in. None: it does not."""
    own = own_cgroup()
    return own if own and Path(own).name.startswith(prefix) else None


def cgroup_beside(name: str) -> str | None:
    """The cgroup of that name in the unit of the fork server that this process is in. None: it is
    in none."""
    unit, _, ours = (own_cgroup() or "").rpartition("/")
    served = ours == OURS and Path(unit).name.startswith(SERVER)
    return f"{unit}/{name}" if served else None


def settle(unit: str) -> None:
    """Move to a cgroup of our own in our unit's, so that jobs can have theirs beside it."""
    ours = _make(f"{unit}/{OURS}")
    if ours is not None:
        # A cgroup whose children have controllers must not have processes itself.
        tell_kernel(f"{ours}/cgroup.procs", b"0")
        for controller in CONTROLLERS:
            tell_kernel(f"{unit}/cgroup.subtree_control", controller)
        tell_kernel(f"{ours}/memory.min", KEPT_BYTES)


def create(path: str, limits: Mapping[str, str]) -> str | None:
    """A new cgroup for the job alone; `limits`: contents of its files. None if there can be none:
    then the job runs without."""
    made = _make(path)
    for name, value in limits.items() if made else ():
        tell_kernel(f"{path}/{name}", value.encode())
    return made


def enter(path: str, limits: Mapping[str, str]) -> None:
    """Move this process into that cgroup, which `create` has made. When a fork server is killed,
    systemd removes what is empty below its unit, so it may have to be made again."""
    try:
        write_file(f"{path}/cgroup.procs", b"0")
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV) or not create(path, limits):
            raise
        write_file(f"{path}/cgroup.procs", b"0")


def _make(path: str) -> str | None:
    try:
        Path(path).mkdir(0o755, exist_ok=True)
    except OSError:
        return None
    return path


def members(cgroup: str) -> dict[int, int]:
    """The live processes in it and below it: pid and start time. Zombies are in none."""
    found = {}
    for directory, _, _ in os.walk(cgroup):
        try:
            pids = read_file(f"{directory}/cgroup.procs").split()
        except OSError:  # it was removed
            continue
        for pid in map(int, pids):
            stat = process_stat(pid)
            if stat is not None:  # 0 stands for a process that we cannot see
                found[pid] = stat[1]
    return found


def is_empty(cgroup: str) -> bool:
    """Whether no process is left in it and below it. Raises OSError if that cannot be known."""
    try:
        return b"populated 0" in read_file(f"{cgroup}/cgroup.events")
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        if error.errno == errno.ENODEV:  # it was removed while we read
            return True
        raise


def move(pid: int, start: int, cgroup: str) -> None:
    """Move this process there, but not another one that reuses its pid."""
    was = cgroup_of(pid)
    stat = process_stat(pid)
    if stat is None or stat[1] != start:
        return
    tell_kernel(f"{cgroup}/cgroup.procs", b"%d" % pid)
    stat = process_stat(pid)
    if was and stat is not None and stat[1] != start:  # the kernel takes nothing but the number
        tell_kernel(f"{was}/cgroup.procs", b"%d" % pid)


def static_bytes(cgroup: str) -> int:
    """Bytes of its memory that the kernel cannot take back."""
    stat = _counts(f"{cgroup}/memory.stat")
    try:
        used = int(read_file(f"{cgroup}/memory.current"))
    except OSError:  # it has just ended
        return 0
    return used - sum(stat.get(name, 0) for name in RECLAIMABLE)


def is_frozen(cgroup: str) -> bool:
    """Whether its processes are not to run."""
    try:
        return read_file(f"{cgroup}/cgroup.freeze").strip() == b"1"
    except OSError:  # it has just ended
        return False


def oom_kills(cgroup: str | None) -> int | None:
    """How often the kernel's OOM killer has struck in this cgroup and those below it. None: nobody
    counts."""
    return _counts(f"{cgroup}/memory.events").get(b"oom_kill") if cgroup else None


def cpu_s(cgroup: str) -> float | None:
    """The processor time that its processes, and those below it, have ever taken. None: it has no
    processes any more."""
    used = _counts(f"{cgroup}/cpu.stat").get(b"usage_usec")
    return None if used is None else used / 1e6


def _counts(path: str) -> dict[bytes, int]:
    try:
        return _numbers(read_file(path))
    except OSError:
        return {}


def _numbers(lines: bytes) -> dict[bytes, int]:
    """What the kernel wrote as a name and a number on each line."""
    words = lines.split()
    return {name: int(count) for name, count in zip(words[::2], words[1::2], strict=False)}


class MemoryEvents:
    """What has happened to the memory of a cgroup, ever. `fd` is ready (POLLPRI) when `look` should
    be called; -1: nobody counts."""

    def __init__(self, cgroup: str | None) -> None:
        self._cgroup = cgroup
        self.shared_bytes: int | None = None  # in files of /dev/shm, at worst, when it was full
        try:
            self.fd = os.open(f"{cgroup}/memory.events", os.O_RDONLY) if cgroup else -1
        except OSError:
            self.fd = -1
        self._now: dict[bytes, int] = {}
        self.look()

    def look(self) -> None:
        found = self._read()
        if found.get(b"oom", 0) > self._now.get(b"oom", 0):
            shared = _counts(f"{self._cgroup}/memory.stat").get(b"shmem", 0)
            self.shared_bytes = max(self.shared_bytes or 0, shared)
        self._now = found

    def count(self, name: bytes) -> int | None:
        """How often that has happened. None: nobody counts."""
        return self._now.get(name)

    def _read(self) -> dict[bytes, int]:
        # Reading from the open file is what makes it ready for the next event.
        if self.fd < 0:
            return {}
        try:
            return _numbers(os.pread(self.fd, 4096, 0))
        except OSError:
            return {}
