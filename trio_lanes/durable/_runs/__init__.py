"""One instance: it claims jobs, runs them, reports their ends, and keeps its lease."""
