"""The process that starts one attempt of a job, outlives the daemon, and records how it ended.

It is forked from a server (`forkserver`), or `command(ATTEMPT_DIR)` runs it: the standard library
only, as it runs without `site`. In the attempt directory:

- `launch`   what to run (`Launch`), written by the launcher
- `lock`     held (flock) for as long as a supervisor lives
- `started`  JSON: pid, start_ticks, boot_id (as the daemon that launched it sees it), at; cgroup
             (of all that belongs to the attempt, null if it has none); `follows`: the pid of the
             main process, if the job's owner started it. On disk before the job is forked; if it
             exists, no supervisor starts the job again
- `control`  FIFO; lines `signal NUMBER`, `stop GRACE_S` and, before a stop, `because CAUSE`;
             `until BOOT_S`: when to end the job as out of time, in seconds since boot; `follow PID
             START_TICKS`: another process that the owner started; answered by a link (`joined`).
             `freeze 1 NAME`, `freeze 0 NAME`: let none of the job's processes run, or all again;
             `allow BYTES NAME`: of the host's memory. Both are answered by a dangling link
             (`answer-NAME`), whose target is `-`, or why it was not done
- `stop`     if it exists, the job is not started: a stop that came before we read `control`, or
             the attempt was revoked. A dangling symbolic link whose target is the cause: even a
             full disk has room for one
- `tail`     the last 64 KiB that this attempt added to its logs, if it added anything
- `exit`     JSON: code, signal, error, hint, started_at, ended_at, ended_boot_s and
             main_ended_boot_s (seconds since boot; the latter of the main process),
             host_oom_kills, over_limit (how often the job met its own limit of memory, while
             the server may have had more), shared_bytes (of files in /dev/shm when it did),
             stopped (by the daemon), cause (why, if given), interrupted (by a SIGTERM to us: the
             machine is shutting down), left (processes that could not be killed), background
             (processes of the main one's session that outlived it, and were ended).
             Written once no other process of the job is left
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import stat
import sys
import time
from pathlib import Path
from signal import SIGTERM

from carmad.attempt.cgroup import (
    MemoryEvents,
    cgroup_beside,
    create,
    enter,
    name_of,
    settle,
    unit_cgroup,
)
from carmad.attempt.proc import UNKNOWN, main_process, process_stat, read_file, tell_kernel
from carmad.attempt.process_tree import Tree, boottime, how_it_ended
from carmad.attempt.starting import (
    REPORT_BYTES,
    CannotStart,
    Launch,
    adopt_orphans,
    aside,
    become_job,
    become_user,
    block,
    die_with_parent,
    fork,
    program,
    readable,
    start_program,
    write_all,
)
from carmad.paths import sync_directory

LOCK, LAUNCH, STARTED, CONTROL, STOP, TAIL, EXIT = (
    "lock",
    "launch",
    "started",
    "control",
    "stop",
    "tail",
    "exit",
)
HERE = Path()
TAIL_BYTES = 64 * 1024
TAIL_WITHIN_S = 5.0
SEALED_WITHIN_S = 2.0
F_GET_SEALS, F_SEAL_WRITE = 1034, 8  # `fcntl` has them from Python 3.13 on
LOGS = b"logs"  # the first word of the child's first line
REVOKED = "revoked"  # the cause of a stop: the daemon has given the attempt up
KILLED_LAST = b"-900"  # of all processes, by the kernel's OOM killer; 0 is the usual
OOM_SCORE = "/proc/self/oom_score_adj"


def write_durably(name: str, data: bytes) -> None:
    """Replace `name` in the current directory; complete and on disk when this returns."""
    part = Path(f"{name}.tmp")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(name)
    sync_directory(".")


def open_log(path: str, target: int, header: bytes) -> int:
    """Append what is written to `target` to this file. Returns the offset at which that begins,
    after the header, which is written only if the file is not empty."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY
    try:
        os.dup2(os.open(path, flags, 0o666), target)
    except OSError as error:
        raise CannotStart(
            f"cannot open the log file {readable(path)}: {error.strerror}",
            "name a file in an existing directory that you can write to (-o, -e)",
        ) from error
    status = os.fstat(target)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return 0
    with contextlib.suppress(OSError):  # the disk is full
        write_all(target, header)
    return os.fstat(target).st_size


def header_begin() -> bytes:
    """Of the line before an attempt's output in a log that it shares with others. `carma logs`
    relies on it. Called in the attempt's directory."""
    job, _, attempt = Path.cwd().name.partition(".")
    return f"\n=== carma job {job}, attempt {attempt}, ".encode()


def attempt_header() -> bytes:
    return header_begin() + time.strftime("%Y-%m-%dT%H:%M:%S%z ===\n").encode()


def send_logs(link: socket.socket, launch: Launch) -> None:
    """Pass on the logs, opened for reading: their ends are found even if they have been deleted or
    moved by then. Raises OSError if one cannot be read: then their paths are used."""
    fds: list[int] = []
    for path, target in {launch.stderr: 2, launch.stdout: 1}.items():
        status = os.fstat(target)
        is_file = stat.S_ISREG(status.st_mode)
        fds.insert(0, os.open(path if is_file else os.devnull, os.O_RDONLY | os.O_NONBLOCK))
        if is_file and not os.path.samestat(status, os.fstat(fds[0])):
            return  # it was replaced just now
    socket.send_fds(link, [LOGS], fds)


def receive_logs(link: socket.socket) -> list[int]:
    """The logs that came, if any. Closes `link`."""
    with link, contextlib.suppress(OSError):
        return socket.recv_fds(link, len(LOGS), 2, socket.MSG_CMSG_CLOEXEC)[1]
    return []


def run_job(
    launch: Launch,
    cgroup: str | None,
    oom_score: bytes,
    header: bytes,
    link: socket.socket,
    report: int,
) -> None:
    """In the child: become the user, then the user's program. Returns only by raising."""
    os.setsid()
    if cgroup is not None:
        try:
            enter(cgroup, launch.limits)
        except OSError as error:  # outside of it, nobody would know that it is the job
            raise CannotStart(
                f"cannot enter the job's cgroup {cgroup}: {error.strerror}",
                "ask an administrator; the kernel's log may say more",
            ) from error
    link.send(b"\0")
    tell_kernel(OOM_SCORE, oom_score)
    become_job(launch)
    # Until it is the user's program, nothing shows that it belongs to the attempt: if its log is a
    # FIFO or on a dead file server, it must not begin after the attempt has been reported as lost.
    die_with_parent()
    begin = open_log(launch.stdout, 1, header)
    if launch.stderr == launch.stdout:
        os.dup2(1, 2)
        begins = [begin]
    else:
        begins = [begin, open_log(launch.stderr, 2, header)]
    with contextlib.suppress(OSError):
        send_logs(link, launch)
    write_all(report, b"%s %s\n" % (LOGS, b" ".join(b"%d" % each for each in begins)))
    start_program(launch, report)


def watch(
    tree: Tree,
    control: int,
    report: int,
    grace_s: float,
    memory: MemoryEvents,
    link: socket.socket | None = None,
) -> tuple[bytes, list[int]]:
    """Serve the job until none of its processes is left. Returns what came over `report`, and the
    logs that came over `link`. Without that, the main process is followed, and `report` is a pidfd
    of it."""
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_in, False)
    os.set_blocking(wake_out, False)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
    for signum in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)
    block()
    poller = select.poll()
    link_fd = link.fileno() if link else -1
    for fd in (wake_in, control, report, *([link_fd] if link else [])):
        poller.register(fd, select.POLLIN)
    if memory.fd >= 0:
        poller.register(memory.fd, select.POLLPRI)
    said = lines = b""
    logs: list[int] = []
    while not tree.reap():
        tree.keep_time(grace_s)
        pause_s = tree.press()
        for fd, _ in poller.poll(None if pause_s is None else 1 + pause_s * 1000):
            if fd == memory.fd:
                memory.look()
                continue
            if link and fd == link_fd:
                poller.unregister(fd)
                logs = receive_logs(link)
                continue
            if link is None and fd == report:
                tree.note_main_end()
                poller.unregister(report)
                continue
            data = os.read(fd, REPORT_BYTES)
            if fd == report:
                said = (said + data)[:REPORT_BYTES]
                if not data:
                    poller.unregister(report)
            elif fd == control:
                *whole, lines = (lines + data).split(b"\n")
                for line in whole:
                    tree.obey(line)
            elif SIGTERM in data:
                tree.interrupted = tree.interrupted or tree.status is None
                tree.end(grace_s)
    if link:
        with contextlib.suppress(BlockingIOError):
            said += os.read(report, REPORT_BYTES)
        if link.fileno() >= 0:
            logs = receive_logs(link)
    return said, logs


def split_report(said: bytes) -> tuple[list[int], bytes]:
    """Where the attempt's part of each log begins, and why it could not start, if so."""
    line, _, rest = said.partition(b"\n")
    if line.startswith(LOGS):
        return [int(word) for word in line.split()[1:]], rest
    return [], said


def read_tail(fd: int, begin: int) -> bytes:
    """The end of a log's part that begins there; of all of it, if the log was truncated since."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return b""
    if begin > status.st_size:
        begin = 0
    return os.pread(fd, TAIL_BYTES, max(begin, status.st_size - TAIL_BYTES))


def open_tail(path: str, sealed: bool) -> int | None:
    """`sealed`: once its writer has sealed it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    if sealed:
        await_seal(fd)
    return fd


def await_seal(fd: int) -> None:
    """Wait, for a while, until this memfd is sealed against writing: then it is complete."""
    for _ in range(int(SEALED_WITHIN_S / 0.01)):
        try:
            if fcntl.fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE:
                return
        except OSError:  # any other kind of file
            return
        time.sleep(0.01)


def read_tails(launch: Launch, begins: list[int], logs: list[int]) -> bytes:
    """The ends of the job's logs, stdout's first, read by a child that has become the user: of the
    files that were opened for it, or else of those that have their paths now.

    Root could be tricked into reading a file that the user may not read, and cannot read an NFS
    home at all; and a child that hangs on a dead server can be abandoned.
    """

    def read(out: int) -> None:
        become_user(launch)
        paths = dict.fromkeys((launch.stdout, launch.stderr))
        opened = (open_tail(path, bool(launch.follow)) for path in paths)
        for fd, begin in zip(logs or opened, begins, strict=False):
            if fd is not None:
                write_all(out, read_tail(fd, begin))

    return aside(read, TAIL_WITHIN_S, 2 * TAIL_BYTES)[0]


def tell_news() -> None:
    """Print what a running attempt has added to its logs: `ATTEMPT_DIR BEGIN BEGIN`, of stdout and
    stderr. Those of its main process, as its user; only files, so that nobody is kept waiting by
    anything but a file server."""
    os.chdir(sys.argv[1])
    launch, begins = Launch.loads(read_file(LAUNCH)), [*map(int, sys.argv[2:]), 0, 0]
    main, own = main_process(json.loads(read_file(STARTED))["pid"]), header_begin()
    become_user(launch)
    seen: list[os.stat_result] = []
    for target, begin in zip((1, 2), begins, strict=False):
        with contextlib.suppress(OSError):  # it has closed this one, or has ended
            path = Path(f"/proc/{main}/fd/{target}")
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or any(os.path.samestat(status, it) for it in seen):
                continue
            seen.append(status)
            if (fd := open_tail(str(path), sealed=False)) is not None:
                _, header, news = read_tail(fd, begin).rpartition(own)
                write_all(1, news.partition(b"\n")[2] if header else news)


def why_stopped(directory: Path = HERE) -> str:
    """The cause in `stop`; "" if there is none."""
    with contextlib.suppress(OSError):
        return str((directory / STOP).readlink())
    return ""


def is_stopped(directory: Path = HERE) -> bool:
    """Whether the attempt was stopped or revoked in a way that keeps any supervisor that has not
    started yet from running it."""
    return (directory / STOP).is_symlink()


def keep(name: str, data: bytes) -> None:
    """Write `name`, retrying for as long as the disk is full, unless its directory is removed."""
    while True:
        try:
            return write_durably(name, data)
        except FileNotFoundError:
            return None
        except OSError:
            time.sleep(1.0)


def open_followed(pid: int, start: int) -> int:
    """A pidfd of that process; -1 if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return -1
    found = process_stat(pid)  # from here on, the pidfd cannot refer to another one
    if found is None or found[1] != start:
        os.close(pidfd)
        return -1
    return pidfd


def supervise(directory: str) -> None:
    """Run the attempt in the current directory, from `started` to `exit`. `directory`: the same,
    as its processes have it in their environment."""
    block(SIGTERM)  # until `watch` can handle it
    for signum in (signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    if os.getsid(0) != os.getpid():
        os.setsid()
    adopt_orphans()
    launch = Launch.loads(read_file(LAUNCH))
    control = os.open(CONTROL, os.O_RDWR | os.O_NONBLOCK)  # read-write: it never reaches its end
    started_at = time.time()
    own = process_stat(os.getpid())
    assert own is not None
    oom_score = read_file(OOM_SCORE)
    tell_kernel(OOM_SCORE, KILLED_LAST)
    whole = group = alone = None  # the cgroup of the attempt; of the job, which may be the same
    if not launch.stays:
        alone = launch.cgroup or cgroup_beside(name_of(*Path.cwd().name.split(".")))
        if alone:
            whole = group = create(alone, launch.limits)
        elif whole := unit_cgroup():
            settle(whole)
            group = create(f"{whole}/job", launch.limits)
    tree = Tree(0, group, launch.uid, os.fsencode(directory), launch.contained)
    tree.until = launch.until
    report = -1
    if launch.follow:
        tree.main, start = launch.follow
        report = open_followed(tree.main, start)
        tree.follow(tree.main, start)  # before `started`, which lets it begin
    started = {
        "pid": os.getpid(),
        "start_ticks": own[1],
        "boot_id": launch.boot_id,
        "at": started_at,
        "follows": launch.follow and tree.main,
        "cgroup": group and whole,
    }
    write_durably(STARTED, json.dumps(started).encode())
    sync_directory("..")  # the launcher made our directory without syncing it

    said: bytes = b""
    logs: list[int] = []
    # `control` is open, so a stop has either left `stop` by now or will come through the FIFO.
    stopped = is_stopped()
    if stopped:
        tree.stopped, tree.cause = True, why_stopped()
    link = None
    if not launch.follow and not stopped:
        header = attempt_header()
        link, theirs = socket.socketpair()
        tree.main, report = fork(lambda out: run_job(launch, group, oom_score, header, theirs, out))
        theirs.close()
        link.recv(1)  # once it is in its cgroup; nothing if it never will be
        link.setblocking(False)
    memory = MemoryEvents(group)
    if launch.follow and report < 0:
        tree.status = UNKNOWN
        said = b"the process that was to run the job is gone\n"
    elif launch.follow:
        if stopped:
            tree.end(0.0)
        watch(tree, control, report, launch.grace_s, memory)
    elif link is None:  # it was stopped before it began
        tree.status = SIGTERM
    else:
        said, logs = watch(tree, control, report, launch.grace_s, memory, link)
    assert tree.status is not None
    code, killed_by = how_it_ended(tree.status)
    memory.look()
    if alone:
        with contextlib.suppress(OSError):  # it never was, or the job has made something in it
            Path(alone).rmdir()

    begins, error = split_report(said)
    message, _, hint = error.decode("utf-8", "replace").strip().partition("\n")
    with contextlib.suppress(OSError):  # the tail is optional, `exit` is not
        if tail := read_tails(launch, begins or [0], logs):
            write_durably(TAIL, tail)
    record = {
        "code": code,
        "signal": killed_by,
        "error": message,
        "hint": hint,
        "started_at": started_at,
        "ended_at": time.time(),
        "ended_boot_s": boottime(),
        "main_ended_boot_s": tree.main_ended_boot_s,
        "host_oom_kills": memory.count(b"oom_kill"),
        "over_limit": memory.count(b"oom"),
        "shared_bytes": memory.shared_bytes,
        "stopped": tree.stopped,
        "cause": tree.cause,
        "interrupted": tree.interrupted,
        "left": tree.left,
        "background": tree.background,
    }
    keep(EXIT, json.dumps(record).encode() + b"\n")


def main() -> None:
    os.chdir(sys.argv[1])
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # another supervisor is running
    # Only we hold it: a child may hang before it has become the user's program.
    os.register_at_fork(after_in_child=lambda: os.close(lock))
    if not Path(STARTED).exists():
        supervise(sys.argv[1])


def command(directory: str) -> list[str]:
    """The argv that supervises the attempt in `directory`."""
    return [*program("carmad.attempt.supervisor"), directory]
