"""Connectors: one module or package for each chat platform, independent of each other."""
