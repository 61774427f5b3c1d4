"""How fast Torana is, beside what it could not be faster than: ``python -m bench --help``."""
