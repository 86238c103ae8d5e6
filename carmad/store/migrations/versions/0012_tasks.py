"""How many tasks of an array a row stands for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    column = sa.Column("tasks", sa.Integer(), nullable=False, server_default="1")
    op.add_column("jobs", column)
