"""What happens in turns, for whoever watches: ``base`` is the interface, one file per place it is kept."""
