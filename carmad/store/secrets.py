"""Values of environment variables that look like secrets, for as long as a job may need them.

They are in files beside the database, one for each environment that has some, readable by their
owner only, and never in the database: SQLite would leave them in free pages and in its log, and
they would be in each backup.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from carmad.paths import sync_directory
from carmad.store.database import StoreFull

log = logging.getLogger(__name__)

FOLDER = "secrets"  # beside the database

Variables = tuple[tuple[str, str], ...]

_NAME = re.compile(
    r"TOKEN(?!IZ|S)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY"
    r"|_KEY$|^MYSQL_PWD$",
    re.IGNORECASE,
)
_PASS = re.compile("PASS|PWD", re.IGNORECASE)  # which may be digits
_PLAIN = re.compile(r"[-+.\d]{0,20}|true|false|yes|no|on|off", re.IGNORECASE)  # PAD_TOKEN_ID=7


def looks_secret(name: str, value: str) -> bool:
    if not _NAME.search(name):
        return False
    return bool(value) if _PASS.search(name) else not _PLAIN.fullmatch(value)


def split(env: Variables) -> tuple[Variables, Variables]:
    """The other variables, and those that look like secrets."""
    secret = tuple(each for each in env if looks_secret(*each))
    return tuple(each for each in env if each not in secret), secret


class SecretFiles:
    """What is kept is on disk when a method returns."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / FOLDER

    def keep(self, name: str, secrets: object) -> None:
        """Raises StoreFull."""
        path, body = self._folder / name, to_json(secrets)
        with contextlib.suppress(OSError):
            if path.read_bytes() == body:
                return
        part = self._folder / f"{name}.part"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            part.unlink(missing_ok=True)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(fd)
            part.replace(path)
            sync_directory(self._folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            hint = f"Free space on the file system of {self._folder}; see `df` and `dmesg`."
            raise StoreFull(f"cannot write {path}: {error.strerror}", hint) from error

    def read(self, name: str) -> Any:
        """None if they are not kept."""
        try:
            return from_json((self._folder / name).read_bytes())
        except (OSError, ValueError):
            return None

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:  # it is tried again when carmad starts
                log.error("cannot remove %s: %s", self._folder / name, error.strerror)

    def forget_others(self, needed: Collection[str]) -> None:
        if self._folder.is_dir():
            self.forget(path.name for path in self._folder.iterdir() if path.name not in needed)
