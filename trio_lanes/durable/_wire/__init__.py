"""The calls of a store as messages: for a store that is served to other processes."""
