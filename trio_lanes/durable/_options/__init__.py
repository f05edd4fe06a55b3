"""Values that users give, checked and made into records: limits, retry policies, JSON."""
