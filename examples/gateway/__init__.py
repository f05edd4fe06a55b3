"""A gateway that speaks the Responses API, over lanes. `python -m examples.gateway` runs it."""
