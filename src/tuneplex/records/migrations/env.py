"""Runs the migrations over the connection that `records.revisions` opened; Alembic loads it by its place."""

from __future__ import annotations

from alembic import context

from tuneplex.records.tables import REVISION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=REVISION_TABLE,
    render_as_batch=True,  # SQLite cannot alter most of a table; Alembic then makes a new one and moves the rows
    transactional_ddl=True,  # both databases can; for SQLite Alembic would not believe it
)
context.run_migrations()
