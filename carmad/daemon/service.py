"""carmad as a service: the socket at which it listens, its communication with systemd, its unit
files, and its settings, which are read at the start and again on SIGHUP (`systemctl reload
carmad`)."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import socket
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Event

from carmad import beats, configfile, paths
from carmad.config import Host, Settings, at_once
from carmad.errors import CarmaError
from carmad.threads import Threads

FIRST_FD = 3  # systemd passes its sockets from here on

# Where each shipped file goes, below the root directory.
INSTALLED = {
    "carmad.service": Path("etc/systemd/system/carmad.service"),
    "carmad.socket": Path("etc/systemd/system/carmad.socket"),
    "carma-web.service": Path("etc/systemd/system/carma-web.service"),
    "carma.sysusers": Path("etc/sysusers.d/carma.conf"),
}

INSTALL_AGAIN = (
    "install CARMA again, from your copy of it: pip install --force-reinstall --no-deps PATH"
)

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
    raise CarmaError(f"no unit files in {wheel}", INSTALL_AGAIN)


def render() -> dict[Path, str]:
    """The files to install, by path below the root directory, for this interpreter's carmad."""
    beside = Path(sys.executable).with_name("carmad")
    carmad = str(beside) if beside.exists() else shutil.which("carmad")
    if carmad is None:
        raise CarmaError(
            f"there is no carmad command beside {sys.executable}",
            INSTALL_AGAIN,
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


PROBE_S = 5.0


def listen(path: str) -> socket.socket:
    """A new socket at `path`. Raises CarmaError if another daemon answers there."""
    if _answers(path):
        raise CarmaError(f"another carmad answers at {path}", "stop it first: carma daemon stop")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mode = 0o755 if os.geteuid() == 0 else 0o700
    try:
        Path(path).parent.mkdir(mode=mode, parents=True, exist_ok=True)
        if Path(path).is_socket():  # a dead daemon's; never remove anything else
            Path(path).unlink()
        listener.bind(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise CarmaError(f"cannot listen at {path}: {why}", "choose --socket") from error
    # Anybody may connect to root's: the kernel identifies them.
    Path(path).chmod(0o666 if os.geteuid() == 0 else 0o600)
    return listener


def _answers(path: str) -> bool:
    """Whether somebody listens there, even if too busy or not permitting us."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(path)
        except (TimeoutError, BlockingIOError, PermissionError):
            return True
        except OSError:
            return False
        return True


# -- settings

log = logging.getLogger(__name__)

LATE_S = 30.0
EMULATED = "emulated"  # below the state directory


def read_settings(options: argparse.Namespace, state_dir: Path) -> tuple[Settings, Path | None]:
    """The current settings, and the file that they came from. Raises CarmaError."""
    given = options.config or os.environ.get("CARMA_CONFIG")
    default = Path(paths.config_path())
    file = Path(given) if given else default if default.exists() else None
    settings = configfile.load(file, os.environ)
    settings = replace(settings, host=with_defaults(settings.host))
    if options.emulated:
        settings = replace(
            settings,
            monitor=replace(settings.monitor, source=f"emulated:{state_dir / EMULATED}"),
            access=replace(settings.access, root_jobs=True),  # nothing there to protect from root
            origins=settings.origins
            | dict.fromkeys(("monitor.source", "access.root_jobs"), "--emulated"),
        )
    return settings, file


def with_defaults(host: Host) -> Host:
    """With what this machine has, where nothing is set."""
    cpus = len(os.sched_getaffinity(0)) if host.cpus is None else host.cpus
    memory_mib = host.memory_mib
    if memory_mib is None:
        memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 19 // 20 >> 20
    return replace(host, cpus=cpus, memory_mib=memory_mib)


class Reloader:
    """A thread that rereads the settings on request. Invalid settings change nothing."""

    def __init__(self) -> None:
        self._thread = Threads(1, "reload", LATE_S)
        self._is_started = Event()

    def ask(self) -> Future[None]:
        """Done once the settings are in effect, or with what is wrong with them. May be called from
        a signal handler, and before `start`."""
        return self._thread.submit(self._reload)

    def start(
        self, settings: Settings, read: Callable[[], Settings], apply: Callable[[Settings], None]
    ) -> None:
        """`settings` are those in effect; `read` returns new ones, or raises CarmaError."""
        self._settings, self._read, self._apply = settings, read, apply
        self._is_started.set()

    def _reload(self) -> None:
        beats.idle()
        self._is_started.wait()
        beats.at("the settings")
        try:
            self._settings = _reload(self._settings, self._read, self._apply)
        except CarmaError as error:
            log.error("the settings stay as they are: %s. %s", error, error.hint)
            raise
        except Exception:
            log.exception("the settings stay as they are")
            raise


def _reload(
    settings: Settings, read: Callable[[], Settings], apply: Callable[[Settings], None]
) -> Settings:
    """The settings from now on."""
    wanted = read()
    loaded = merge(settings, wanted)
    changes = _differences(settings, loaded)
    if changes or loaded.origins != settings.origins:
        apply(loaded)
    log.info("settings reloaded: %s", "; ".join(changes) or "nothing changed")
    if waiting := find_waiting(loaded, wanted):
        log.warning("restart carmad to change %s", "; ".join(waiting))
    return loaded


def find_waiting(settings: Settings, wanted: Settings) -> list[str]:
    """What only a restart changes from those in effect to those wanted: names and values."""
    return _differences(merge(settings, wanted), wanted)


def merge(old: Settings, wanted: Settings) -> Settings:
    """`old` with those that can change at once taken from `wanted`."""
    settings = old
    for section, name in at_once():
        if not section:
            settings = replace(settings, **{name: getattr(wanted, name)})
            continue
        value = getattr(getattr(wanted, section), name)
        changed = replace(getattr(settings, section), **{name: value})
        settings = replace(settings, **{section: changed})
    values, others = configfile.by_name(settings), configfile.by_name(wanted)
    whose = {name: wanted if its == others.get(name) else old for name, its in values.items()}
    found = {name: each.origins.get(name, "") for name, each in whose.items()}
    return replace(settings, origins={name: where for name, where in found.items() if where})


def _differences(old: Settings, new: Settings) -> list[str]:
    before, after = configfile.by_name(old), configfile.by_name(new)
    return [
        f"{name} from {before.get(name)} to {after.get(name)}"
        for name in before | after
        if before.get(name) != after.get(name)
    ]
