"""The events of turns: their log in memory, and how replicas share them."""
