"""The times of turns, the words of messages, archived sessions, and usage by its causes."""

import sqlalchemy as sa
from alembic import op

from torana.store.engine.tables import UtcTime

revision = "0010"
down_revision = "0009"

_UNINDEXED = sa.text("words_row IS NULL AND ended_at IS NOT NULL")
_INDEXED = sa.text("words_row IS NOT NULL")


def upgrade() -> None:
    """Create the tables and columns. Usage so far counts as usage of unknown causes."""
    op.add_column("sessions", sa.Column("archived_at", UtcTime()))
    op.add_column("turns", sa.Column("words_row", sa.BigInteger()))
    op.create_index("ix_turns_owner", "turns", ["owner", "created_at", "id"])
    op.create_index("ix_turns_created", "turns", ["created_at", "id"])
    op.create_index("ix_turns_unindexed", "turns", ["owner", "created_at"], sqlite_where=_UNINDEXED)
    op.create_index("uq_turns_words", "turns", ["words_row"], unique=True, sqlite_where=_INDEXED)
    op.execute(
        "CREATE VIRTUAL TABLE message_words USING fts5(owner, session, words, detail=column, columnsize=0, "
        "tokenize = \"unicode61 remove_diacritics 2 categories 'L* M* N* P* S* C*'\")"
    )
    op.create_table(
        "timings",
        sa.Column("turn_id", sa.Text(), sa.ForeignKey("turns.id", name="fk_timings_turn_id"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer()),
        sa.Column("name", sa.Text()),
        sa.Column("call_id", sa.Text()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger()),
        sa.Column("output_tokens", sa.BigInteger()),
        sa.Column("microusd", sa.BigInteger()),
        sa.Column("started_at", UtcTime(), nullable=False),
        sa.Column("ended_at", UtcTime()),
        sa.PrimaryKeyConstraint("turn_id", "attempt", "number", name="pk_timings"),
    )
    _create_spending()


def _create_spending() -> None:
    causes = ("day", "model", "user", "token", "channel", "schedule")
    op.create_table(
        "spending",
        *(sa.Column(name, sa.Text(), nullable=False) for name in causes),
        sa.Column("messages", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _AMOUNTS),
        sa.PrimaryKeyConstraint(*causes, name="pk_spending"),
    )
    op.create_index("ix_spending_user", "spending", ["user"])
    op.execute(
        "INSERT INTO spending SELECT period, '', '', '', '', '', messages, input_tokens, output_tokens, "
        "microusd FROM usage WHERE account = 'gateway' AND length(period) = 10"
    )


_AMOUNTS = ("input_tokens", "output_tokens", "microusd")
