"""The way of a job: the loop, the workers that run bodies, and the registry of lanes."""
