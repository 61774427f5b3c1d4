"""The database engine: connections, migrations, locks and integrity checks."""
