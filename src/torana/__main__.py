"""``python -m torana`` is the command ``torana``."""

from torana.cli import main

main()
