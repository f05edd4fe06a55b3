"""Tool calls: running them at the same time, reading their output in order, external answers."""
