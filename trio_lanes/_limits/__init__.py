"""The arithmetic of rate limits, which lanes and the stores of durable lanes share."""
