"""People where they already are: one chat platform per file, each readable alone."""
