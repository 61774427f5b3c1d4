"""The init systems that can run the gateway as a service: their files and commands."""
