"""The events of turns: ``base`` is the interface, and each other module is one implementation."""
