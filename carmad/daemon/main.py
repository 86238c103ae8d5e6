"""`carmad`: reads its options and settings, and runs the daemon until it is told to stop."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from carmad import installed, paths
from carmad.config import Settings
from carmad.daemon.parts import Daemon, for_a_person
from carmad.daemon.service import EMULATED, Reloader, listen_fds, notify, read_settings
from carmad.errors import CarmaError, Hopeless
from carmad.gpu import emulated
from carmad.gpu.nvml import choose
from carmad.http.server import turn_away

log = logging.getLogger("carmad")

# New objects before the youngest are looked through. By default, 700: then requests are taken for
# objects that live long, and a few hundred of them have all jobs looked through, for 20 ms or more.
GARBAGE = 10_000
LARGE = 1 << 20  # bytes, from which a buffer is given back to the system when it is freed
M_MMAP_THRESHOLD = -3  # of mallopt(3)
EX_CONFIG = 78  # RestartPreventExitStatus of carmad.service
EX_TEMPFAIL = 75  # systemd starts it again


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)
    os.umask(0o022)  # sockets, pipes and cards are for others to reach
    give_memory_back()
    fds = listen_fds()
    listener = socket.socket(fileno=fds[0]) if fds else None
    try:
        _log_to(options.log_file)
        faulthandler.enable()  # so that SIGABRT, which the watchdog sends, says where threads are
        if error := installed.conflict():
            log.warning("%s; %s", error.message, error.hint)
        return EX_TEMPFAIL if run(options, listener) else 0
    except CarmaError as error:
        print(f"carmad: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        if listener:
            turn_away(listener)
        return EX_CONFIG if isinstance(error, Hopeless) else 1


def run(options: argparse.Namespace, listener: socket.socket | None) -> bool:
    """Returns whether to start again."""
    state_dir = Path(options.state_dir or paths.state_dir()).absolute()
    reloader = Reloader()
    signal.signal(signal.SIGHUP, lambda *_: reloader.ask())
    settings, config = _settings(options, state_dir)
    with for_a_person():
        source = choose(settings.monitor.source, settings.monitor.period_s)
    with contextlib.ExitStack() as stack:
        daemon = Daemon(options, state_dir, settings, config, source, listener, stack, reloader)
        daemon.restore()
        daemon.start()
        reloader.start(settings, daemon.read_settings, daemon.reconfigure)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: daemon.inbox.close())
        gc.freeze()  # this stays for good: looking through it would stop everybody for 40 ms
        gc.set_threshold(GARBAGE)
        notify("READY=1")
        log.info("ready: policy %s, telemetry %s", settings.policy, source.name)
        daemon.engine.run()
        daemon.inbox.refuse()
        notify("STOPPING=1")
        log.info("stopping; running jobs continue")
    return daemon.again.is_set()


def give_memory_back() -> None:
    """By default, glibc raises the threshold with each large buffer that is freed, and later keeps
    such buffers, in each thread that had one: 35 MB after each listing of 10,000 jobs."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("carmad", description="The CARMA daemon.")
    parser.add_argument("--config", help="the settings file")
    parser.add_argument("--state-dir", help="where the database and the jobs' records live")
    parser.add_argument("--socket", help="where to listen for `carma`")
    parser.add_argument("--emulated", metavar="SPEC", help="emulate GPUs, e.g. 3xA100-40GB")
    parser.add_argument("--log-file", help="append the log here (default: standard error)")
    return parser


def _log_to(path: str | None) -> None:
    try:
        handlers = [logging.FileHandler(path) if path else logging.StreamHandler()]
    except OSError as error:
        raise CarmaError(f"cannot write {path}: {error.strerror}", "choose --log-file") from error
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=handlers)
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # a line for whatever garbage it is sent


def _settings(options: argparse.Namespace, state_dir: Path) -> tuple[Settings, Path | None]:
    """The settings in effect, and the file that they came from."""
    with for_a_person():
        settings, file = read_settings(options, state_dir)
    if options.emulated:
        emulated.create(state_dir / EMULATED, options.emulated)
        if os.geteuid() == 0:
            state_dir.chmod(0o711)  # every user's jobs come through to the cards
    return settings, file


if __name__ == "__main__":
    sys.exit(main())
