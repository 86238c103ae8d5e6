"""A machine whose PID 1 is systemd, made of namespaces of this one, with CARMA installed in it.

It has a /run, /etc, /home, /var/lib and /var/cache of its own, several users, and this checkout's
carmad on emulated GPUs in the unit as shipped. /tmp and the network are this machine's. Where it
cannot be had (no root, no systemd, no cgroup v2), NotBooted tells the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.harness import PATIENCE_S, until
from carmad.core.jobs.states import ENDED

SYSTEMD = Path("/lib/systemd/systemd")
USERS = {"ada": 61_001, "bob": 61_002}
SOCKET = "/run/carma/carmad.sock"
CARMA = str(Path(sys.executable).with_name("carma"))
OVER = frozenset(state.value for state in ENDED)

Json = dict[str, Any]

# Its mounts and its cgroup are below $1. It is left when systemd is gone, and takes both along.
AROUND = """
set -e
mount -t tmpfs none "$1"
mkdir "$1/cgroup" "$1/etc" "$1/empty"
cp -a /etc/. "$1/etc"
mount -t cgroup2 none "$1/cgroup"
own=$1/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
for each in $(cat "$own/cgroup.controllers"); do
    echo "+$each" > "$own/cgroup.subtree_control" || true  # a group with processes has none to give
done 2>/dev/null
group=$own/carma-booted-$$
mkdir "$group"
echo 0 > "$group/cgroup.procs"
unshare --pid --fork --kill-child --cgroup --mount --uts --ipc sh -ec "$2" "$1" || true
echo 0 > "$own/cgroup.procs"
for _ in 1 2 3 4 5; do  # the killed take a moment to be gone
    find "$group" -depth -type d -exec rmdir {} + && break
    sleep 0.5
done
"""

# Inside. What users need ($NEEDED) can be reached even where it is below a closed directory. Of the
# distribution's own units none is started: only what carmad.service asks for. As in systemd-nspawn,
# the boot id is the machine's own, except in a /proc that is mounted anew, as by ProtectProc=.
INSIDE = """
IFS='
'
mount -t proc proc /proc
i=0; for each in $NEEDED; do
    i=$((i + 1)); mkdir "$0/$i"; mount --bind "$each" "$0/$i"
done
for where in $CLOSED /run /home /var/lib /var/cache; do
    mount -t tmpfs -o mode=755 none "$where"
done
i=0; for each in $NEEDED; do
    i=$((i + 1)); mkdir -p "$each"; mount --bind "$0/$i" "$each"
done
rm -rf "$0"/etc/systemd/system/* "$0/etc/fstab"
mount --bind "$0/etc" /etc
for unwanted in /lib/systemd/system/*.wants /lib/systemd/system-generators; do
    mount --bind "$0/empty" $unwanted
done
cat /proc/sys/kernel/random/uuid > "$0/boot_id"
mount --bind "$0/boot_id" /proc/sys/kernel/random/boot_id
umount -R /sys/fs/cgroup 2>/dev/null || umount -l /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
exec env -i container=carma PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=basic.target --show-status=no
"""

# As any program of a user's might, without CARMA's own client: that may be out of their reach.
REQUEST = """
import http.client, json, socket, sys
where, method, path, body = json.load(sys.stdin)
class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(where)
connection = Unix("localhost", timeout=300)
connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
answer = connection.getresponse()
print(json.dumps([answer.status, json.loads(answer.read())]))
"""


class NotBooted(Exception):
    """No such machine can be had here, for this reason."""


@dataclass
class Machine:
    pid1: int
    folder: Path  # on both sides
    python: str = sys.executable
    users: Mapping[str, int] = field(default_factory=lambda: USERS)

    def run(self, *words: str, user: str = "", check: bool = True, stdin: str = "") -> str:
        """The output of a command inside."""
        enter = self.enter()
        if user:
            enter += [f"--setuid={self.users[user]}", f"--setgid={self.users[user]}"]
        ran = subprocess.run(
            [*enter, *words], input=stdin, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert not check or ran.returncode == 0, (words, ran)
        return ran.stdout.strip()

    def enter(self, wd: str = "/") -> list[str]:
        """How to start a command inside."""
        enter = ["nsenter", f"--target={self.pid1}", "--mount", "--pid", "--cgroup"]
        return [*enter, "--uts", "--ipc", f"--wd={wd}"]

    def systemctl(self, *words: str, check: bool = True) -> str:
        return self.run("systemctl", *words, check=check)

    def show(self, unit: str, name: str) -> str:
        return self.systemctl("show", "--value", "--property", name, unit)

    def call(self, method: str, path: str, body: object = None, user: str = "ada") -> Json:
        asked = json.dumps([SOCKET, method, path, body])
        said = self.run(self.python, "-I", "-S", "-c", REQUEST, user=user, stdin=asked)
        status, out = json.loads(said)
        assert status < 300, out
        answer: Json = out
        return answer

    def sh(self, script: str, user: str = "ada", **fields: object) -> int:
        """Submit a job. Its name tells it from those that the siege's attackers submit."""
        request = {"argv": ["/bin/sh", "-c", script], "cwd": f"/home/{user}", "env": {}}
        body = {**request, "name": "sh", **fields}
        return int(self.call("POST", "/v1/jobs", body, user)["id"])

    def await_end(self, id: int, user: str = "ada") -> Json:
        def over() -> Json | None:
            job = self.call("GET", f"/v1/jobs/{id}", user=user)
            return job if job["state"] in OVER else None

        found: Json = until(over, f"job {id} to end: {self.log()}")
        return found

    def read(self, path: str) -> str:
        return self.run("cat", path, check=False)

    def await_line(self, path: str, text: str) -> None:
        until(lambda: text in self.read(path), f"{text!r} in {path}: {self.log()}")

    def log(self) -> str:
        """The end of carmad's."""
        path = self.folder / "carmad.log"
        return path.read_text()[-4000:] if path.exists() else ""

    def install(self, **settings: str) -> None:
        """Like an administrator, with emulated GPUs and settings in a drop-in."""
        self.run(CARMA, "daemon", "install")
        self.emulate(str(Path(sys.executable).with_name("carmad")), **settings)
        self.systemctl("daemon-reload")

    def emulate(self, carmad: str, **settings: str) -> None:
        """Write the drop-in."""
        lines = [f"Environment={name}={value}" for name, value in settings.items()]
        lines += ["ExecStart=", f"ExecStart={carmad} --emulated 4xA100-40GB"]
        lines += [f"StandardError=append:{self.folder}/carmad.log"]
        drop_in = "\n".join(["[Service]", *lines, ""])
        self.run("mkdir", "/etc/systemd/system/carmad.service.d")
        self.run("tee", "/etc/systemd/system/carmad.service.d/test.conf", stdin=drop_in)

    def welcome(self) -> None:
        """Give the users accounts."""
        for name, uid in self.users.items():
            passwd = f"{name}:x:{uid}:{uid}::/home/{name}:/bin/sh\n"
            self.run("tee", "--append", "/etc/passwd", stdin=passwd)
            self.run("tee", "--append", "/etc/group", stdin=f"{name}:x:{uid}:\n")
            self.run("install", "-d", "-m700", f"-o{uid}", f"-g{uid}", f"/home/{name}")


@contextlib.contextmanager
def boot(folder: Path, users: Mapping[str, int] = USERS, **settings: str) -> Iterator[Machine]:
    """A machine with CARMA installed and its socket open; carmad has not been started."""
    if " " in CARMA:
        raise NotBooted(f"systemd would split {CARMA} at its spaces")
    with systemd_in(folder, INSIDE, mounts()) as machine:
        machine.users = users
        machine.welcome()
        machine.install(**settings)
        machine.systemctl("start", "carmad.socket")
        yield machine


@contextlib.contextmanager
def systemd_in(folder: Path, inside: str, variables: Mapping[str, str]) -> Iterator[Machine]:
    """A machine that the script `inside` makes, with these variables, and boots."""
    if os.geteuid() != 0:
        raise NotBooted("only root can boot a machine in namespaces")
    if not SYSTEMD.exists() or shutil.which("unshare") is None or shutil.which("nsenter") is None:
        raise NotBooted("systemd, unshare or nsenter is not here")
    where = folder / "machine"
    where.mkdir()
    with (folder / "boot.log").open("wb") as log:
        around = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", AROUND, "sh", str(where), inside],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield Machine(_pid1(around, folder / "boot.log"), folder)
    finally:
        for pid in _children(around.pid):
            os.kill(pid, signal.SIGKILL)  # `unshare`, which takes PID 1 and all its own along
        around.wait()


def mounts() -> dict[str, str]:
    """What users need, and the directories above it that they may not enter."""
    needed = [Path(each).resolve() for each in (ROOT, sys.prefix, sys.base_prefix)]
    closed = {
        next((up for up in reversed(each.parents) if not up.stat().st_mode & 0o001), None)
        for each in needed
    }
    return {
        "NEEDED": "\n".join(map(str, needed)),
        "CLOSED": "\n".join(str(each) for each in closed if each),
    }


def _pid1(around: subprocess.Popen[bytes], log: Path) -> int:
    """Its pid here. Raises NotBooted if systemd does not start on this machine."""

    def up() -> int | None:
        assert around.poll() is None, "it ended"
        pid = around.pid
        while _name(pid) != "systemd" and (children := _children(pid)):
            pid = children[0]
        if _name(pid) != "systemd" or Machine(pid, log.parent).systemctl(
            "is-system-running", check=False
        ) not in ("running", "degraded"):
            return None
        return pid

    try:
        found: int = until(up, "systemd to boot")
    except AssertionError as error:
        said = textwrap.shorten(log.read_text(errors="replace"), 500)
        raise NotBooted(f"systemd cannot be booted in namespaces here: {error}: {said}") from None
    return found


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
