"""Databases as earlier builds left them."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path


def undo_accounts(path: Path) -> None:
    """As at revision 0003, when what is stored per user went by name."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for table in ("limits", "reservations"):
            database.execute(f"UPDATE {table} SET body = json_remove(body, '$.uid', '$.uids')")
        accounts = database.execute(
            "SELECT user, json_remove(body, '$.uid') FROM accounts"
        ).fetchall()
        database.execute("DROP TABLE accounts")
        database.execute("CREATE TABLE accounts (user TEXT PRIMARY KEY, body TEXT NOT NULL)")
        database.executemany("INSERT INTO accounts VALUES (?, ?)", accounts)
        database.execute("DROP INDEX ix_jobs_search")
        database.execute(
            "CREATE INDEX ix_jobs_search ON jobs (user, ended_at, state, words, name,"
            " submitted_at, started_at, gpu_seconds) WHERE ended_at IS NOT NULL"
        )
        database.execute("ALTER TABLE jobs DROP COLUMN uid")
        bare = "substr(json_extract(body, '$.group'), 1, 12)"
        database.execute(f"UPDATE jobs SET body = json_set(body, '$.group', {bare})")
        database.execute("UPDATE alembic_version SET version_num = '0003'")
