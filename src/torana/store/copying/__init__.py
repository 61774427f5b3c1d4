"""Copy a whole database into another one, SQLite or PostgreSQL."""
