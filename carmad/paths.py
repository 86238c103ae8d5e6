"""Where the daemon's files and its socket are, and the names of logs. Imported by every `carma`
call: keep it light."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

MOST_DIGITS = 10  # as Slurm's
HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
_OWN = f"{HOME}/carmad/own"  # where the wheel has them, installed or as it is: a zip
# Where `cli`, `estimators`, `policies` and `recovery` are: others' packages may have these names.
OWN = _OWN if os.path.isdir(_OWN) or not os.path.isdir(HOME) else HOME  # noqa: PTH112
# Code with which another Python finds CARMA, and ours before others' of the same name.
FIND = f"import sys; sys.path.insert(0, {OWN!r}); sys.path.append({HOME!r})"
SYSTEM_SOCKET = "/run/carma/carmad.sock"


def socket_path() -> str:
    """The socket for `carma`: CARMA_SOCKET, or the user's own daemon's if there is one, or the
    system's.
    """
    if given := os.environ.get("CARMA_SOCKET"):
        return given
    own = user_runtime_dir() + "/carmad.sock"
    return own if _is_ours(own) else SYSTEM_SOCKET


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Names of files that were added or taken away are on disk after it."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def is_served() -> bool:
    """Whether `carma` has a daemon to ask here, which may be down: else it may be a cluster's login
    node."""
    return bool(os.environ.get("CARMA_SOCKET")) or os.path.exists(socket_path())  # noqa: PTH110


def _is_ours(path: str) -> bool:
    """Whether both the socket and its directory belong to the user: in /tmp, anybody could create a
    socket to receive other people's environments, or replace it at any moment."""
    try:
        directory, there = os.lstat(os.path.dirname(path)), os.lstat(path)  # noqa: PTH120
    except OSError:
        return False
    return directory.st_uid == there.st_uid == os.getuid() and not directory.st_mode & 0o022


def daemon_socket() -> str:
    """Where a daemon listens unless told otherwise."""
    given = os.environ.get("CARMA_SOCKET")
    return given or (SYSTEM_SOCKET if os.getuid() == 0 else user_runtime_dir() + "/carmad.sock")


def user_runtime_dir() -> str:
    base = os.environ.get("XDG_RUNTIME_DIR")
    return f"{base}/carma" if base else f"/tmp/carma-{os.getuid()}"


def user_state_dir() -> str:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111
    return f"{base}/carma"


def user_cache_dir() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return f"{base}/carma"


def state_dir() -> str:
    """CARMA_STATE_DIR, or systemd's STATE_DIRECTORY, or /var/lib/carma for root."""
    if given := os.environ.get("CARMA_STATE_DIR") or os.environ.get("STATE_DIRECTORY"):
        return given
    return "/var/lib/carma" if os.getuid() == 0 else user_state_dir()


def mps_dir(state_dir: str) -> str:
    """Where MPS daemons have their pipes and logs; root's can be reached by every user's jobs."""
    return "/run/carma/mps" if os.geteuid() == 0 else f"{state_dir}/mps"


def scripts_dir(state_dir: str) -> str:
    """Where the copies of job scripts are; every user's jobs can reach root's."""
    return "/run/carma/scripts" if os.geteuid() == 0 else f"{state_dir}/scripts"


def find_own() -> None:
    """Have this Python find what is in `OWN`, before others' of the same name."""
    if OWN not in sys.path[:1]:
        sys.path.insert(0, OWN)


def config_path() -> str:
    if given := os.environ.get("CARMA_CONFIG"):
        return given
    if os.getuid() == 0:
        return "/etc/carma/carma.toml"
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    return f"{base}/carma/carma.toml"


def fill(pattern: str, values: Mapping[str, str]) -> str:
    """A file's name of a pattern such as `%x-%4j.out`: a letter behind a `%` stands for its value,
    if it has one. Digits between them are how many a number has at least, up to ten."""
    name, left = "", pattern
    while left:
        before, sign, left = left.partition("%")
        name += before
        digits = len(left) - len(left.lstrip("0123456789"))
        letter = left[digits : digits + 1]
        if not sign:
            break
        if letter not in values:
            name += sign
            continue
        value = values[letter]
        width = min(int(left[:digits][:3] or 0), MOST_DIGITS)
        name += value.zfill(width) if value.isdecimal() else value
        left = left[digits + 1 :]
    return name


def python(module: str) -> list[str]:
    """The argv that runs a module of CARMA's as a program of its own: `python -m`, but for what the
    environment and the current directory would add to its path."""
    code = f"run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-E", "-P", "-c", f"{FIND}; from runpy import run_module; {code}"]
