"""The objects that users hold: `DurableLanes`, `DurableJob`, and `open_durable_lanes`."""
