"""What others see of lanes: hooks, statistics, and warnings about long waits."""
