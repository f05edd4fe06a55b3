"""Who waits for what: deadlocks, requests for room, waits for lanes, `blocked_by`."""
