"""Alembic's environment for PostgreSQL: migrates on the connection from ``torana.store.engine.migrate``."""

from alembic import context

from torana.store.engine.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
