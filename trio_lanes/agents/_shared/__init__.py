"""Runs, thread locks and transcripts over instances, by the verbs of durable lanes."""
