"""What stores of tables in a database share: a cache of lookups, and the thread that writes."""
