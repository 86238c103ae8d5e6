"""Reads the settings at the start, and again on SIGHUP, which `systemctl reload carmad` sends."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from carmad import beats, configfile, paths
from carmad.config import Host, Settings, at_once
from carmad.errors import CarmaError

log = logging.getLogger(__name__)

LATE_S = 30.0
EMULATED = "emulated"  # below the state directory


def read(options: argparse.Namespace, state_dir: Path) -> tuple[Settings, Path | None]:
    """The current settings, and the file that they came from. Raises CarmaError."""
    given = options.config or os.environ.get("CARMA_CONFIG")
    default = Path(paths.config_path())
    file = Path(given) if given else default if default.exists() else None
    settings = configfile.load(file, os.environ)
    settings = replace(settings, host=known(settings.host))
    if options.emulated:
        settings = replace(
            settings,
            monitor=replace(settings.monitor, source=f"emulated:{state_dir / EMULATED}"),
            access=replace(settings.access, root_jobs=True),  # nothing there to protect from root
        )
    return settings, file


def known(host: Host) -> Host:
    """With what this machine has, where nothing is set."""
    cpus = len(os.sched_getaffinity(0)) if host.cpus is None else host.cpus
    memory_mib = host.memory_mib
    if memory_mib is None:
        memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 19 // 20 >> 20
    return replace(host, cpus=cpus, memory_mib=memory_mib)


class Reloader:
    """A thread that rereads the settings on request. Invalid settings change nothing."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[None] = SimpleQueue()

    def ask(self) -> None:
        """May be called from a signal handler, and before `start`."""
        self._asked.put(None)

    def start(
        self, settings: Settings, read: Callable[[], Settings], apply: Callable[[Settings], None]
    ) -> None:
        """`settings` are those in effect; `read` returns new ones, or raises CarmaError."""
        threading.Thread(
            target=self._serve, args=(settings, read, apply), name="reload", daemon=True
        ).start()

    def _serve(
        self, settings: Settings, read: Callable[[], Settings], apply: Callable[[Settings], None]
    ) -> None:
        with beats.beating("reload", LATE_S):
            while True:
                beats.idle()
                self._asked.get()
                beats.at("the settings")
                try:
                    settings = _reload(settings, read, apply)
                except CarmaError as error:
                    log.error("the settings stay as they are: %s. %s", error, error.hint)
                except Exception:
                    log.exception("the settings stay as they are")


def _reload(
    settings: Settings, read: Callable[[], Settings], apply: Callable[[Settings], None]
) -> Settings:
    """The settings from now on."""
    wanted = read()
    loaded = reloaded(settings, wanted)
    if changes := _differences(settings, loaded):
        apply(loaded)
    log.info("settings reloaded: %s", "; ".join(changes) or "nothing changed")
    if waiting := _differences(loaded, wanted):
        log.warning("restart carmad to change %s", "; ".join(waiting))
    return loaded


def reloaded(settings: Settings, wanted: Settings) -> Settings:
    """`settings` with those that can change at once taken from `wanted`."""
    for section, name in at_once():
        value = getattr(getattr(wanted, section), name)
        changed = replace(getattr(settings, section), **{name: value})
        settings = replace(settings, **{section: changed})
    return settings


def _differences(old: Settings, new: Settings) -> list[str]:
    before, after = configfile.by_name(old), configfile.by_name(new)
    return [
        f"{name} from {before.get(name)} to {after.get(name)}"
        for name in before | after
        if before.get(name) != after.get(name)
    ]
