"""Conversations: transcripts in memory, files or a store, and turns that write to them."""
