"""Inboxes: the messages of one session, and the turns that handle them."""
