"""Job scripts, copied at submission, have a table of their own, each content of a user once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "scripts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_scripts"),
    )
    op.create_index("ix_scripts_user", "scripts", ["user"])
    op.add_column("jobs", sa.Column("script", sa.Text()))
    op.create_index("ix_jobs_script", "jobs", ["script"])
