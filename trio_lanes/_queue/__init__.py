"""The data structures of order: which job is the next one."""
