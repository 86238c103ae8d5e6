"""`carma cron` is gone. Of each crontab, its text is left, for the account that it belongs to: the
owner of its latest jobs, or else whoever has the uid now."""

from __future__ import annotations

import pwd
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from alembic import op
from pydantic_core import from_json

revision = "0003"
down_revision = "0002"

CRONTABS = sa.table("crontabs", *map(sa.column, ("uid", "body")))
JOBS = sa.table("jobs", *map(sa.column, ("id", "user", "body")))


def upgrade() -> None:
    connection = op.get_bind()
    rows = connection.execute(sa.select(CRONTABS.c.uid, CRONTABS.c.body)).all()
    op.drop_table("crontabs")
    kept = op.create_table(
        "crontabs",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("user", "uid", name="pk_crontabs"),
    )
    for uid, body in rows:
        try:
            its = from_json(body)
            text, jobs = its["text"], [each.get("first") for each in its["entries"]]
            user = _owner(connection, uid, jobs)
        except (ValueError, LookupError, TypeError, AttributeError):
            continue  # it is damaged, or nobody's
        if isinstance(text, str):
            connection.execute(sa.insert(kept), {"user": user, "uid": uid, "text": text})


def _owner(connection: sa.Connection, uid: int, jobs: list[Any]) -> str:
    """Raises KeyError if there is none."""
    ids = [id for id in jobs if isinstance(id, int) and 0 < id < 1 << 63]
    query = sa.select(JOBS.c.user, JOBS.c.body).where(JOBS.c.id.in_(ids)).order_by(JOBS.c.id.desc())
    for user, body in connection.execute(query):
        with suppress(ValueError, LookupError, TypeError):  # this one is damaged
            if from_json(body)["spec"]["uid"] == uid:
                return str(user)
    return pwd.getpwuid(uid).pw_name
