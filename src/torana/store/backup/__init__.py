"""Backups, snapshots, copies before an upgrade, and erasure."""
