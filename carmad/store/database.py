"""The SQLite file: opened the way CARMA needs it, and copied to `backups/` beside it; and its
errors, explained.

The file is opened only through SQLite: closing another descriptor of it would drop the locks that
this process holds.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from carmad.errors import CarmaError, Hopeless
from carmad.paths import sync_directory
from carmad.store.tables import JOBS, METADATA

# -- backups

_PAGES = 256  # 1 MiB at a time


def back_up(engine: Engine, state_dir: Path) -> Path:
    """A verified copy, renamed to its final name once it is complete and on disk."""
    directory = state_dir / "backups"
    directory.mkdir(mode=0o700, exist_ok=True)
    partial = directory / "partial"
    copy_database(engine, partial)
    final = directory / f"carma-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.db"
    partial.rename(final)
    sync_directory(directory)
    return final


def copy_database(engine: Engine, path: Path) -> None:
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


def prune_backups(state_dir: Path, keep: int) -> None:
    """Delete all but the newest `keep`."""
    for old in _backups(state_dir)[:-keep]:
        old.unlink()


def newest_backup(state_dir: Path) -> Path | None:
    """The newest undamaged copy. Slow: copies are read completely."""
    return next((copy for copy in reversed(_backups(state_dir)) if _is_whole(copy)), None)


def last_id_backed_up(state_dir: Path) -> int:
    """The last job id when the newest readable copy was made; 0 if there was none."""
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'"
    answers = (_query(copy, query) for copy in reversed(_backups(state_dir)))
    return next((int(row[0]) for row in answers if row), 0)


def _is_whole(copy: Path) -> bool:
    tables = _query(copy, "SELECT 1 FROM sqlite_master WHERE name = 'jobs'")
    return tables is not None and _query(copy, "PRAGMA quick_check(1)") == ("ok",)


def _query(copy: Path, query: str) -> tuple[Any, ...] | None:
    """The first row of the result, if any."""
    with contextlib.suppress(sqlite3.Error):
        uri = f"file:{quote(str(copy))}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            row: tuple[Any, ...] | None = connection.execute(query).fetchone()
            return row
    return None


def _backups(state_dir: Path) -> list[Path]:
    return sorted((state_dir / "backups").glob("carma-*.db"))  # names contain the time


# -- tables

SCHEMA = 2  # kept as the file's `user_version`: raised when the tables change


def has_tables(connection: Connection, path: Path) -> bool:
    """Raises Hopeless if the tables are of another version: they are left as they are."""
    found = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    tables = set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())
    if not tables:
        return False
    if JOBS.name not in tables:
        raise Hopeless(
            f"the file {path} is a database, but not of CARMA. It is left as it is",
            f"Keep it elsewhere: mv {path} {path}.other",
        )
    if found == SCHEMA:
        return True
    whose = "a newer" if found > SCHEMA else "an earlier"
    folder = path.parent
    raise Hopeless(
        f"the database {path} was made by {whose} version of CARMA (schema {found}; this version"
        f" has schema {SCHEMA}). It is left as it is",
        f"Go on with the version that made it. To start afresh: let its jobs end, stop carmad, and"
        f" keep the folder elsewhere: mv {folder} {folder}.schema-{found}",
    )


def create_tables(connection: Connection) -> None:
    METADATA.create_all(connection, checkfirst=False)
    connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")


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
            return damage(path, str(cause))
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return CarmaError(f"cannot use the database {path}: {cause}", f"See `ls -l {path}`.")
        case _:
            return None


def damage(path: Path, how: str) -> Hopeless:
    newest = newest_backup(path.parent)
    # The old write-ahead log would damage the restored file.
    aside = f"mv {path} {path}.damaged && rm -f {path}-wal"
    return Hopeless(
        f"the database {path} is damaged: {how}",
        f"The newest backup is {newest}. To restore it, stop carmad and run: "
        f"{aside} && cp -p {newest} {path}"
        if newest
        else f"There is no backup. To start with an empty one, stop carmad and run: {aside}",
    )


def expect_database(path: Path) -> None:
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
    newest = newest_backup(path.parent)
    if newest:
        folder = newest.parent
        raise _missing(path, f"{newest} is a backup of it", f"mv {folder} {folder}.old")


def _missing(path: Path, proof: str, anew: str) -> Hopeless:
    newest = newest_backup(path.parent)
    back = f"cp -p {newest} {path}"
    return Hopeless(
        f"the database {path} is missing or empty, but it once existed: {proof}",
        "Put it back where it was."
        + (f" To restore the newest backup: rm -f {path}-wal && {back}." if newest else "")
        + f" To start with an empty queue: {anew}",
    )
