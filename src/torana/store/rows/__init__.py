"""Queries and statements, one module for each family of tables."""
