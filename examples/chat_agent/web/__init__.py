"""The web page of the chat agent: chat in several sessions, and the lanes live."""
