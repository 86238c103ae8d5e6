"""Opens the SQLite file the way CARMA needs it, and explains its errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from carmad.errors import CarmaError, Hopeless
from carmad.store import backups

DatabaseErrors = (sqlite3.Error, DBAPIError)  # raw while connecting, wrapped from then on


_FAILING = (
    "Free space if the disk is full; otherwise it fails, or the kernel has made its file system"
    " read-only: see `df` and `dmesg`. carmad goes on by itself when it can write there again."
)


class StoreFull(CarmaError):
    """Nothing was written; commits work again once there is space."""


def connect(path: Path) -> Engine:
    """An engine with one connection, so that threads take turns.

    Its lock on the file is exclusive and held until it closes. That keeps a second daemon out, and
    with a single connection SQLite's WAL-reset bug (before 3.51.3, 3.50.7 and 3.44.6) cannot
    strike. The same applies to fixed builds: it is one behaviour to test, and nobody else needs the
    file of a running daemon, as there are backups to read.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        pool_size=1,
        max_overflow=0,
        pool_timeout=300.0,
        connect_args={"isolation_level": None, "timeout": 1.0},
        hide_parameters=True,  # errors are logged, and jobs' environments must not be
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    # Invalid text makes one row unreadable, not the whole result.
    connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # before WAL: then it needs no -shm file
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # a job id is printed once it is on disk
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # in this mode, the driver does not do it


def explain(error: Exception, path: Path) -> CarmaError | None:
    """An error in terms of its administrator; None if it is a bug in CARMA."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the detail
    match code:
        case sqlite3.SQLITE_FULL:
            return StoreFull(
                f"cannot write {path}: {cause}",
                f"Free space on the file system of {path.parent}; see `df` and `dmesg`.",
            )
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_READONLY:
            return StoreFull(f"cannot write {path}: {cause}", _FAILING)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return CarmaError(
                f"another process has {path} open",
                f"Is another carmad running? `fuser {path}` shows it.",
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(path, str(cause))
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return CarmaError(f"cannot use the database {path}: {cause}", f"See `ls -l {path}`.")
        case _:
            return None


def damaged(path: Path, how: str) -> Hopeless:
    newest = backups.newest(path.parent)
    # The old write-ahead log would damage the restored file.
    aside = f"mv {path} {path}.damaged && rm -f {path}-wal"
    return Hopeless(
        f"the database {path} is damaged: {how}",
        f"The newest backup is {newest}. To restore it, stop carmad and run: "
        f"{aside} && cp -p {newest} {path}"
        if newest
        else f"There is no backup. To start with an empty one, stop carmad and run: {aside}",
    )


def expect(path: Path) -> None:
    """Raises Hopeless if the database is missing but once existed: an empty one would lose the
    queue, and SQLite would delete the write-ahead log that still belongs to it."""
    log = path.with_name(f"{path.name}-wal")
    if path.exists() and path.stat().st_size:
        return
    if log.exists() and log.stat().st_size:
        raise _missing(path, f"its log {log} is still there", f"mv {log} {log}.lost")
    expect_backed_up(path)


def expect_backed_up(path: Path) -> None:
    """Raises Hopeless if there is a backup, so that an empty database is not the original one."""
    newest = backups.newest(path.parent)
    if newest:
        folder = newest.parent
        raise _missing(path, f"{newest} is a backup of it", f"mv {folder} {folder}.old")


def _missing(path: Path, proof: str, anew: str) -> Hopeless:
    newest = backups.newest(path.parent)
    back = f"cp -p {newest} {path}"
    return Hopeless(
        f"the database {path} is missing or empty, but it once existed: {proof}",
        "Put it back where it was."
        + (f" To restore the newest backup: rm -f {path}-wal && {back}." if newest else "")
        + f" To start with an empty queue: {anew}",
    )
