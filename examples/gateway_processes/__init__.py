"""The gateway in several processes: `python -m examples.gateway --durable FOLDER --processes N`."""
