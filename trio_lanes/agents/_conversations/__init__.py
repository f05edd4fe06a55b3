"""Conversations: transcripts in append-only logs, and turns that write to them concurrently."""
