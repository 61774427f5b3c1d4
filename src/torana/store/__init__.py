"""Tables, transactions and SQL. What is kept here is decided elsewhere."""
