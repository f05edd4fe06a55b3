"""The store in a Valkey or Redis server."""
