"""Measure replicas on PostgreSQL: ``python -m bench.replicas``."""
