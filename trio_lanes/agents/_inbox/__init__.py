"""Inboxes, in memory or over durable lanes: messages of one session, and the turns for them."""
