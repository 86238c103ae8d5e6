"""What is stored per user belongs to an account, a name and a uid together; so far it went by name.

Whose a row is says the latest job of that name, or else the user database. Where neither knows the
name, limits and reservations stay with the name, until they are set anew or over, and what nobody
here has used is dropped.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op
from pydantic_core import from_json, to_json

revision = "0004"
down_revision = "0003"

_UID = """
    CASE WHEN json_valid(body) AND json_type(body, '$.spec.uid') = 'integer'
         THEN json_extract(body, '$.spec.uid') ELSE -1 END
"""
_GROUP = """
    UPDATE jobs SET body = json_set(body, '$.group', json_extract(body, '$.group') || '-' || uid)
    WHERE uid >= 0 AND json_type(body, '$.group') = 'text' AND json_extract(body, '$.group') != ''
"""


def upgrade() -> None:
    connection = op.get_bind()
    op.add_column("jobs", sa.Column("uid", sa.Integer(), nullable=False, server_default="-1"))
    op.execute(f"UPDATE jobs SET uid = {_UID}")
    op.drop_index("ix_jobs_search", "jobs")
    op.create_index(
        "ix_jobs_search",
        "jobs",
        [
            *("user", "ended_at", "state", "words"),
            *("name", "submitted_at", "started_at", "gpu_seconds", "uid"),
        ],
        sqlite_where=sa.text("ended_at IS NOT NULL"),
    )
    op.execute(_GROUP)  # runs of the same job are those of one account
    latest = sa.text("SELECT user, uid, max(id) FROM jobs WHERE uid >= 0 GROUP BY user")
    of_jobs = {row.user: row.uid for row in connection.execute(latest)}

    def uid_of(name: str) -> int | None:
        try:
            return of_jobs[name] if name in of_jobs else pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError):
            return None

    _convert_accounts(connection, uid_of)
    _convert(connection, "limits", lambda body: _of_limit(body, uid_of))
    _convert(connection, "reservations", lambda body: _of_reservation(body, uid_of))


Find = Callable[[str], int | None]
Body = dict[str, object]


def _convert_accounts(connection: sa.Connection, uid_of: Find) -> None:
    rows = connection.execute(sa.text("SELECT user, body FROM accounts")).all()
    op.drop_table("accounts")
    kept = op.create_table(
        "accounts",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("user", "uid", name="pk_accounts"),
    )
    for user, body in rows:
        try:
            its, uid = from_json(body), uid_of(user)
            if uid is not None:
                new = to_json({**its, "uid": uid}).decode()
                connection.execute(sa.insert(kept), {"user": user, "uid": uid, "body": new})
        except (ValueError, TypeError):
            continue  # it is damaged


def _convert(connection: sa.Connection, name: str, add: Callable[[Body], Body]) -> None:
    table = sa.table(name, sa.column("id"), sa.column("body"))
    for id, body in connection.execute(sa.select(table.c.id, table.c.body)).all():
        try:
            its = from_json(body)
            new = to_json({**its, **add(its)}).decode()
        except (ValueError, TypeError, LookupError):
            continue  # whoever reads it reports it
        connection.execute(sa.update(table).where(table.c.id == id).values(body=new))


def _of_limit(body: Body, uid_of: Find) -> Body:
    subject = str(body["subject"])
    return {"uid": None if subject.startswith("@") or subject == "default" else uid_of(subject)}


def _of_reservation(body: Body, uid_of: Find) -> Body:
    users = body["users"]
    found = [uid_of(str(user)) for user in users] if isinstance(users, list) else []
    return {"uids": [] if None in found else found}
