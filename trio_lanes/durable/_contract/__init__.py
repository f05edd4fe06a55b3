"""The contract between lanes and stores: the `Store` protocol, its records, job states, errors."""
