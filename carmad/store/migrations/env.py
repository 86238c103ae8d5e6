"""Runs migrations on the connection that `carmad.store.database` hands over."""

from __future__ import annotations

from alembic import context

from carmad.store.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,  # SQLite cannot ALTER most things: the table is copied
)
with context.begin_transaction():
    context.run_migrations()
