"""Feeds: numbered items that readers may resume after any number."""
