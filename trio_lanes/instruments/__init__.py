"""Instruments that tell other systems what lanes do. None is on unless it is given to `open_lanes`.

Each is a module of its own; one that needs another package is an extra.
"""

from .logging import LoggingInstrument as LoggingInstrument
