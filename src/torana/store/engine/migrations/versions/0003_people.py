"""Tokens, accounts and the erasure of users; memories belong to their user."""

import hashlib

import sqlalchemy as sa
from alembic import op

from torana.store.engine.tables import UtcTime
from torana.store.rows.reports import memory_index

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the tables and columns; convert keys and memories."""
    op.add_column("sessions", sa.Column("title", sa.Text()))
    op.add_column("sessions", sa.Column("summary", sa.Text()))
    op.add_column("sessions", sa.Column("summary_to", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("turns", sa.Column("token", sa.Text()))
    op.add_column("turns", sa.Column("failure_policies", sa.Text(), nullable=False, server_default=""))
    op.add_column("turns", sa.Column("reserved_tokens", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("turns", sa.Column("reserved_microusd", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("turns", sa.Column("reserved_on", sa.Text()))
    op.create_index("ix_turns_user", "turns", ["user", "created_at"])
    op.create_index("ix_history_turn_id", "history", ["turn_id"])
    _convert_keys()
    _convert_memories()
    _index_memories()
    _create_tables()


def _convert_keys() -> None:
    connection = op.get_bind()
    kept = connection.execute(sa.text("SELECT owner, key, fingerprint, turn_id, created_at FROM keys")).all()
    op.drop_table("keys")
    op.create_table(
        "keys",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_keys"),
    )
    op.create_index("ix_keys_created_at", "keys", ["created_at"])
    for owner, key, fingerprint, turn_id, created_at in kept:
        connection.execute(
            sa.text("INSERT INTO keys VALUES (:owner, :key, :fingerprint, :turn_id, :created_at)"),
            {
                "owner": owner,
                "key": hashlib.sha256(key.encode()).digest(),
                "fingerprint": fingerprint,
                "turn_id": turn_id,
                "created_at": created_at,
            },
        )


def _convert_memories() -> None:
    op.create_table(
        "new_memories",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("superseded_at", UtcTime()),
        sa.Column("superseded_by", sa.Text()),
        sa.Column("embedding", sa.LargeBinary()),
        sa.Column("embedded_by", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_memories"),
    )
    op.execute(
        "INSERT INTO new_memories (id, owner, subject, text, turn_id, created_at, superseded_at) "
        "SELECT id, 'user:' || \"user\", subject, text, turn_id, created_at, superseded_at FROM memories"
    )
    op.drop_table("memories")
    op.rename_table("new_memories", "memories")
    op.create_index("ix_memories_owner", "memories", ["owner", "created_at"])
    live = sa.text("superseded_at IS NULL AND subject <> ''")
    op.create_index("uq_memories_live", "memories", ["owner", "subject"], unique=True, sqlite_where=live)


def _index_memories() -> None:
    op.execute(
        "UPDATE memories SET superseded_by = (SELECT id FROM memories AS live "
        "WHERE live.owner = memories.owner AND live.subject = memories.subject AND live.superseded_at IS NULL) "
        "WHERE superseded_at IS NOT NULL"
    )
    op.execute(
        "CREATE VIRTUAL TABLE memory_words USING fts5(owner, memory, words, detail=column, columnsize=0, "
        "tokenize = \"unicode61 remove_diacritics 2 categories 'L* M* N* P* S* C*'\")"
    )
    connection = op.get_bind()
    live = "SELECT owner, id, subject, text FROM memories WHERE superseded_at IS NULL"
    for owner, memory, subject, text in connection.execute(sa.text(live)).all():
        memory_index.add(connection, owner, memory, f"{subject} {text}")


def _create_tables() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("user", sa.Text()),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("replaces", sa.Text()),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime()),
        sa.Column("revoked_at", UtcTime()),
        sa.Column("used_at", UtcTime()),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
    )
    op.create_index("ix_tokens_owner", "tokens", ["owner"])
    op.create_table(
        "audit",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", UtcTime(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_table(
        "usage",
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("messages", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("microusd", sa.BigInteger(), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reserved_microusd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", "period", name="pk_usage"),
    )
    op.create_table(
        "tombstones",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", name="pk_tombstones"),
    )
