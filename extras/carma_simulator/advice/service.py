"""A service of the daemon. Once a week it finds out whether another policy would have been better
for the last month's jobs: a process apart simulates them, and a file keeps what it found."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from carmad import apart, beats
from carmad.api.advice import FILE, OWN, AdviceOut
from carmad.core.rules.share import DAY_S
from carmad.edge import Chore, Host

log = logging.getLogger(__name__)

DAYS = 30
EVERY_S = 7 * DAY_S


def advising(host: Host) -> Advising:
    found = Advising(host.state_dir, host.socket, lambda: host.settings().policy)
    host.add_chore(Chore("advise", found.advise_if_due, "interval", {"hours": 1}))
    return found


class Advising:
    """`socket`: this daemon's; `policy`: the one in force."""

    def __init__(self, state_dir: Path, socket: str, policy: Callable[[], str]) -> None:
        self._file = state_dir / FILE
        self._socket = socket
        self._policy = policy
        self._stopping = threading.Event()

    def start(self) -> None:
        """Nothing: it is a chore."""

    def advise_if_due(self) -> None:
        """Call it regularly."""
        policy, last = self._policy(), self._read()
        changed = last is not None and last["policy"] != policy
        if policy != OWN and (changed or self._age_s() >= EVERY_S):
            self._advise()

    def _advise(self) -> None:
        """Takes as long as the simulations. What it cannot tell, it tries again a week later."""
        beats.at("a simulation", 2 * apart.WITHIN_S)
        env = {"CARMA_SOCKET": self._socket}
        code, said, alarms = apart.run(
            "carma_simulator.advice", str(DAYS), stopping=self._stopping, env=env
        )
        if code and not self._stopping.is_set():
            log.info("no advice on the policy: %s", (alarms or [f"it ended with {code}"])[-1])
        if not self._stopping.is_set():
            draft = self._file.with_suffix(".new")
            draft.write_text(said[-1] if said and not code else "", encoding="utf-8")
            draft.replace(self._file)

    def _read(self) -> AdviceOut | None:
        try:
            return cast(AdviceOut, json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # there is none
            return None

    def _age_s(self) -> float:
        try:
            return time.time() - self._file.stat().st_mtime
        except OSError:
            return EVERY_S

    def stop(self) -> None:
        """End what is under way."""
        self._stopping.set()
