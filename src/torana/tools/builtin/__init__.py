"""The tools of the package."""
