"""Redis or Valkey, which replicas share beside the database. It holds only data that may be lost."""
