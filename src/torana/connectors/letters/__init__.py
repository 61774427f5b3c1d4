"""Mail as it comes: what it is made of, what it says, and who wrote it."""
