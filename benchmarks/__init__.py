"""Speed and size of lanes, measured beside their peers. `python -m benchmarks` runs it all."""
