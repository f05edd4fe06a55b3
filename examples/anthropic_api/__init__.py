"""Anthropic's Messages API: a request becomes a chat completion, and its answer a message."""
