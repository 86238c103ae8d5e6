"""Copies of the database, kept in `backups/` beside it.

The file is opened only through SQLite: closing another descriptor of it would drop the locks that
this process holds.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Engine

_PAGES = 256  # 1 MiB at a time


def make(engine: Engine, state_dir: Path) -> Path:
    """A verified copy, renamed to its final name once it is complete and on disk."""
    directory = state_dir / "backups"
    directory.mkdir(mode=0o700, exist_ok=True)
    partial = directory / "partial"
    copy(engine, partial)
    final = directory / f"carma-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.db"
    partial.rename(final)
    _sync(directory)
    return final


def copy(engine: Engine, path: Path) -> None:
    """A verified copy at `path`, readable only by its owner. If it fails, none is left."""
    _remove(path)
    path.touch(mode=0o600)
    try:
        _copy(engine, path)
    except BaseException:
        _remove(path)  # the disk may be full
        raise


def _remove(path: Path) -> None:
    """With the files that SQLite keeps beside it while it is written."""
    for its in (path, *(path.with_name(f"{path.name}-{kind}") for kind in ("wal", "shm"))):
        its.unlink(missing_ok=True)


def _copy(engine: Engine, path: Path) -> None:
    """Returns the connection to the pool between pieces, so that commits need not wait for all.

    As they use the same connection, SQLite applies their changes to the copy as well.
    """
    held = engine.raw_connection()

    def give_way(_status: int, _remaining: int, _total: int) -> None:
        nonlocal held
        held.close()
        time.sleep(0.001)
        held = engine.raw_connection()

    target = sqlite3.connect(path)
    try:
        source = held.driver_connection
        assert isinstance(source, sqlite3.Connection)
        source.backup(target, pages=_PAGES, progress=give_way)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, readable on its own
        (verdict,) = target.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {verdict}")
    finally:
        target.close()
        held.close()


def prune(state_dir: Path, keep: int) -> None:
    """Delete all but the newest `keep`."""
    for old in _all(state_dir)[:-keep]:
        old.unlink()


def newest(state_dir: Path) -> Path | None:
    """The newest undamaged copy. Slow: copies are read completely."""
    return next((copy for copy in reversed(_all(state_dir)) if _is_whole(copy)), None)


def last_id(state_dir: Path) -> int:
    """The last job id when the newest readable copy was made; 0 if there was none."""
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'"
    answers = (_asked(copy, query) for copy in reversed(_all(state_dir)))
    return next((int(row[0]) for row in answers if row), 0)


def _is_whole(copy: Path) -> bool:
    tables = _asked(copy, "SELECT 1 FROM alembic_version")
    return tables is not None and _asked(copy, "PRAGMA quick_check(1)") == ("ok",)


def _asked(copy: Path, query: str) -> tuple[Any, ...] | None:
    """The first row of the result, if any."""
    with contextlib.suppress(sqlite3.Error):
        uri = f"file:{quote(str(copy))}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            row: tuple[Any, ...] | None = connection.execute(query).fetchone()
            return row
    return None


def _all(state_dir: Path) -> list[Path]:
    return sorted((state_dir / "backups").glob("carma-*.db"))  # names contain the time


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
