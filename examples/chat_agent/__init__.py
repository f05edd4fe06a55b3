"""A terminal chat with many sessions at once, over `trio_lanes`. See README.md in this folder."""
