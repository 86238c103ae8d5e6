"""Opens the SQLite file the way CARMA needs it, and says what its errors mean."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from carmad.errors import CarmaError
from carmad.store import backups

DatabaseErrors = (sqlite3.Error, DBAPIError)  # bare while connecting, wrapped from then on


class StoreFull(CarmaError):
    """Nothing was written; the next commit works again once there is room."""


def connect(path: Path) -> Engine:
    """An engine with one connection, so that threads take turns.

    Its lock on the file is exclusive and held until it closes. That keeps a second daemon out, and
    with a single connection SQLite's WAL-reset bug (before 3.51.3, 3.50.7 and 3.44.6) cannot
    strike. It is so on fixed builds too: one behaviour to test, and nobody else has business in
    the file of a running daemon; a backup can be read by anyone who may.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        pool_size=1,
        max_overflow=0,
        pool_timeout=300.0,
        connect_args={"isolation_level": None, "timeout": 1.0},
        hide_parameters=True,  # errors are logged, and jobs' environments are not for the log
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    # What is no text makes one row unreadable, not the whole answer.
    connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # before WAL: then it needs no -shm file
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # a job id is printed once it is on disk
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # the driver itself begins nothing here


def explain(error: Exception, path: Path) -> CarmaError | None:
    """What an error means to the person who runs CARMA; None when it is CARMA's own fault."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the detail
    match code:
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return StoreFull(
                f"cannot write {path}: {cause}",
                f"Make room on the file system of {path.parent}; `df` and `dmesg` tell more.",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return CarmaError(
                f"another process has {path} open",
                f"Is a carmad running already? `fuser {path}` names it.",
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(path, str(cause))
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return CarmaError(f"cannot use the database {path}: {cause}", f"See `ls -l {path}`.")
        case _:
            return None


def damaged(path: Path, how: str) -> CarmaError:
    newest = backups.newest(path.parent)
    aside = f"mv {path} {path}.damaged && rm -f {path}-wal"  # the old log would spoil the new file
    return CarmaError(
        f"the database {path} is damaged: {how}",
        f"The newest backup is {newest}. To go back to it, stop carmad and run: "
        f"{aside} && cp -p {newest} {path}"
        if newest
        else f"There is no backup. To start with an empty one, stop carmad and run: {aside}",
    )
