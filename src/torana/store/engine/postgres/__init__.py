"""PostgreSQL instead of a SQLite file: connections, tables, and one gateway at a time."""
