"""Persistence: tables, transactions and SQL. Business rules are in other packages."""
