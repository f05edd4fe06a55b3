"""Inboxes over durable lanes: messages that wait in a store, and turns on any instance."""
