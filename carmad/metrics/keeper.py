"""The thread that keeps the process running which answers Prometheus (`exporter`).

The daemon itself, which may be root, opens no port. Under systemd the process has a unit of its
own, as carmad's sandbox reaches no other machine. It ends when its standard input does: that is
when this daemon stops, or dies.
"""

from __future__ import annotations

import logging
import os
import sys
from io import FileIO
from itertools import count
from pathlib import Path
from threading import Event

from carmad import beats, configfile, units
from carmad.edge import Host
from carmad.errors import CarmaError
from carmad.metrics import LISTENING

log = logging.getLogger(__name__)

PAUSE_S = 5.0  # before it is started again
END_WITHIN_S = 5.0
LATE_S = 2 * units.WITHIN_S
MOST_LINE = 500  # characters
BOUNDS = {
    "Type": "exec",  # once it is started, it has its standard streams
    "MemoryMax": "256M",
    "TasksMax": "64",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "CAP_SETUID CAP_SETGID",  # to become nobody
    "ProtectSystem": "strict",
    "ProtectHome": "read-only",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
}


def _installation() -> dict[str, str]:
    """Shows the process an installation that its own /tmp would hide."""
    folders = (str(Path(__file__).parents[2]), sys.prefix, sys.base_prefix)
    hidden = [each for each in folders if each.startswith(("/tmp/", "/var/tmp/"))]
    return {"BindReadOnlyPaths": " ".join(hidden)} if hidden else {}


def keep_exporter(host: Host) -> Keeper | None:
    listen = host.settings().metrics.listen
    return Keeper(listen, host.socket, host.has_units) if listen else None


class Keeper:
    """`listen`: as in the settings. `where`: the daemon's socket. `own_units`: systemd is there.
    Raises CarmaError."""

    def __init__(self, listen: str, where: str, own_units: bool) -> None:
        address = configfile.address(listen)
        if address is None:
            raise CarmaError(f"metrics.listen = {listen!r} is not an address and a port")
        host, port = address
        socket = str(Path.cwd() / where)  # a link stays one
        self._argv = [*units.program("carmad.metrics.exporter"), host, str(port), socket]
        self._in_unit = own_units and os.geteuid() == 0
        self._count = count(1)
        self._said: set[str] = set()  # what goes wrong again and again is logged once
        self._stopped = Event()
        stdin, life = os.pipe()  # the process ends once nobody can write to it
        self._stdin, self._life = FileIO(stdin), FileIO(life, "wb")
        self._thread = beats.thread("metrics", LATE_S, self._keep)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._life.close()
        self._thread.join(END_WITHIN_S)

    def _keep(self) -> None:
        while not self._stopped.is_set():
            beats.at("the process that answers Prometheus")
            try:
                self._watch()
            except CarmaError as error:
                self._log(error.message)
            except Exception:
                log.exception("the metrics are not served")
            beats.idle()
            self._stopped.wait(PAUSE_S)

    def _watch(self) -> None:
        """Start it, log what it says, and return once it has ended."""
        said, stderr = os.pipe()
        with os.fdopen(said, errors="replace") as lines:
            try:
                process = units.run(
                    f"carma-metrics-{os.getpid()}-{next(self._count)}",
                    "CARMA answers Prometheus",
                    BOUNDS | _installation(),
                    self._argv,
                    in_unit=self._in_unit,
                    stdin=self._stdin.fileno(),
                    stderr=stderr,
                )
            finally:
                os.close(stderr)
            beats.idle()  # it says nothing for as long as all is well
            for line in lines:
                self._log(line.rstrip()[:MOST_LINE])
        if process:
            process.wait()
        if not self._stopped.is_set():
            self._log("the process has ended, and is started again")

    def _log(self, line: str) -> None:
        if line.startswith(LISTENING):
            self._said.clear()
            log.info("metrics: %s", line)
        elif line not in self._said:
            self._said.add(line)
            log.warning("metrics: %s", line)
