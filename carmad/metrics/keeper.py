"""Keeps the process running which answers Prometheus (`exporter`).

The daemon itself, which may be root, opens no port. Under systemd the process has a unit of its
own, as carmad's sandbox reaches no other machine. It ends when its standard input does: that is
when this daemon stops, or dies.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from io import FileIO
from pathlib import Path

from carmad import configfile, units
from carmad.edge import Chore, Host
from carmad.errors import CarmaError

log = logging.getLogger(__name__)

LOOK_S = 2  # between two looks whether it runs
BOUNDS = {
    "Type": "exec",  # once it is started, it has its standard streams
    "Restart": "on-failure",  # not when its standard input ends
    "RestartSec": "1",  # five starts in ten seconds are the last: the daemon has ended, too
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


class Keeper:
    """Raises CarmaError if the settings name no address and port."""

    def __init__(self, host: Host) -> None:
        listen = host.settings().metrics.listen
        address = configfile.address(listen)
        if address is None:
            raise CarmaError(f"metrics.listen = {listen!r} is not an address and a port")
        name, port = address
        socket = str(Path.cwd() / host.socket)  # a link stays one
        self._argv = [*units.program("carmad.metrics.exporter"), name, str(port), socket]
        self._in_unit = host.has_units and os.geteuid() == 0
        self._process: subprocess.Popen[bytes] | None = None
        self._is_started = False
        stdin, life = os.pipe()  # the process ends once nobody can write to it
        self._stdin, self._life = FileIO(stdin), FileIO(life, "wb")
        host.add_chore(Chore("metrics", self.keep, "interval", {"seconds": LOOK_S}))

    def start(self) -> None:
        """The chore does it."""

    def stop(self) -> None:
        self._life.close()

    def keep(self) -> None:
        """Start it if it does not run: a unit starts itself again. Raises CarmaError."""
        if self._life.closed:
            return
        if self._process and self._process.poll() is not None:
            log.warning("the process that answers Prometheus has ended, and is started again")
            self._is_started = False
        if not self._is_started:
            self._process = units.run(
                f"carma-metrics-{os.getpid()}",
                "CARMA answers Prometheus",
                BOUNDS | _installation(),
                self._argv,
                in_unit=self._in_unit,
                stdin=self._stdin.fileno(),
                stderr=subprocess.DEVNULL if self._in_unit else 2,  # the journal, or our log
            )
            self._is_started = True
