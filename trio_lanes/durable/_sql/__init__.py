"""What the stores in SQL databases share: statements, rows, a cache, and the thread that writes."""
