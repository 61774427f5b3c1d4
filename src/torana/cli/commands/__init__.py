"""The commands of ``torana``, one module for each command or group."""
