"""carmad's communication with systemd, and its unit files."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

from carmad.errors import CarmaError

FIRST_FD = 3  # systemd passes its sockets from here on

# Where each shipped file goes, below the root directory.
INSTALLED = {
    "carmad.service": Path("etc/systemd/system/carmad.service"),
    "carmad.socket": Path("etc/systemd/system/carmad.socket"),
    "carma-web.service": Path("etc/systemd/system/carma-web.service"),
    "carma.sysusers": Path("etc/sysusers.d/carma.conf"),
}

PACKAGED = ("usr/lib/systemd/system", "lib/systemd/system")  # where a distribution's packages do


def notify(message: str) -> bool:
    """Send `READY=1`, `WATCHDOG=1`, `STOPPING=1`, `STATUS=…`. False: systemd does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
        try:
            speaker.connect(address)
            speaker.sendall(message.encode())
        except OSError:
            return False  # the daemon works without it
    return True


def is_service() -> bool:
    """Whether systemd runs this process as a service, and starts it again if it fails."""
    return bool(os.environ.get("NOTIFY_SOCKET")) and bool(os.environ.get("INVOCATION_ID"))


def watchdog_interval_s() -> float | None:
    """How often to send `WATCHDOG=1`: half of what systemd allows. None: no watchdog."""
    allowed_us = os.environ.get("WATCHDOG_USEC", "")
    if not allowed_us.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(
        os.getpid()
    ):
        return None
    return int(allowed_us) / 2e6


def watchdog() -> Callable[[], None]:
    """A function to call about once a second, while all is well."""
    interval_s = watchdog_interval_s()
    last = 0.0

    def alive() -> None:
        nonlocal last
        if interval_s is not None and time.monotonic() - last >= interval_s / 2:
            last = time.monotonic()
            notify("WATCHDOG=1")

    return alive


def listen_fds() -> list[int]:
    """The sockets that systemd opened for us; [] without socket activation. Only the first call
    returns them: the variables are removed, so that no child takes the sockets for its own."""
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    fds = list(range(FIRST_FD, FIRST_FD + int(count)))
    for fd in fds:
        os.set_inheritable(fd, False)
    return fds


def unit_files() -> Path:
    """The directory of the shipped files: a source checkout's `systemd/`, or the wheel's data."""
    checkout = Path(__file__).parents[2] / "systemd"
    wheel = Path(sysconfig.get_path("data")) / "share/carma/systemd"
    for directory in (checkout, wheel):
        if (directory / "carmad.service").is_file():
            return directory
    raise CarmaError(f"no unit files in {wheel}", "reinstall CARMA: pip install --force-reinstall")


def render() -> dict[Path, str]:
    """The files to install, by path below the root directory, for this interpreter's carmad."""
    beside = Path(sys.executable).with_name("carmad")
    carmad = str(beside) if beside.exists() else shutil.which("carmad")
    if carmad is None:
        raise CarmaError(
            f"there is no carmad command beside {sys.executable}",
            "install CARMA into this environment: pip install carma-gpu",
        )
    if any(character.isspace() for character in carmad):
        raise CarmaError(
            f"systemd would split {carmad!r} at its spaces",
            "install CARMA into a path without spaces",
        )
    shipped = unit_files()
    escaped = carmad.replace("%", "%%").replace("$", "$$")  # a specifier, a variable
    commands = {"@CARMAD@": escaped, "@CARMA@": escaped.removesuffix("d")}
    files = {where: (shipped / name).read_text() for name, where in INSTALLED.items()}
    for placeholder, command in commands.items():
        files = {where: text.replace(placeholder, command) for where, text in files.items()}
    return files


def install(root: Path = Path("/")) -> list[Path]:
    """Write the unit files below `root`, and return their paths. It does not start anything."""
    for unit in (root / directory / "carmad.service" for directory in PACKAGED):
        if unit.exists():  # files in /etc would override it, also when a later package changes it
            raise CarmaError(
                f"{unit} is there: a package has installed the units",
                "use them: systemctl enable --now carmad; or remove the package first",
            )
    written = []
    for where, text in render().items():
        path = root / where
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise CarmaError(
                f"cannot write {path}: {error.strerror}", "run this as root"
            ) from error
        written.append(path)
    return written
