"""A record of processes that used GPUs outside the queue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "externals",
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("seen_from", sa.Float(), nullable=False),
        sa.Column("seen_to", sa.Float(), nullable=False),
        sa.Column("peak_mib", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("gpu", "pid", "started_at", name="pk_externals"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_externals_user_seen_to", "externals", ["user", "seen_to"])
