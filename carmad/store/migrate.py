"""Creates a database's tables, upgrades those of an older release, refuses those of a newer one.

Alembic is only imported to upgrade: it takes as long as everything else that the store imports.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
    select,
)

from carmad.errors import Hopeless
from carmad.store.tables import METADATA

if TYPE_CHECKING:
    from alembic.config import Config

SCRIPTS = str(Path(__file__).with_name("migrations"))

# As Alembic itself would create it.
_VERSION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def revision(connection: Connection) -> str | None:
    """The revision of the tables; None for a database without tables."""
    if not inspect(connection).has_table(_VERSION.name):
        return None
    found: str | None = connection.scalar(select(_VERSION.c.version_num))
    return found


def pending(current: str | None) -> bool:
    """Whether tables at revision `current` have to be upgraded."""
    known = _revisions()
    if current not in {None, *known}:
        raise Hopeless(
            f"the database was made by a newer release of CARMA (schema {current})",
            "Install that release again, or restore a backup made by this one.",
        )
    return current != known[-1]


def create(connection: Connection) -> None:
    """Create the tables of this release, the same that all migrations together make."""
    METADATA.create_all(connection, checkfirst=False)
    _VERSION.create(connection)
    connection.execute(insert(_VERSION).values(version_num=_revisions()[-1]))


def upgrade(connection: Connection) -> None:
    """Runs in the caller's transaction: a failed migration leaves no trace."""
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revisions() -> list[str]:
    """All of them, oldest first: a migration's file begins with its revision."""
    return sorted(script.name.partition("_")[0] for script in Path(SCRIPTS).glob("versions/*_*.py"))


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    return config
