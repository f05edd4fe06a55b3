"""Instruments that tell other systems what lanes do. None is on unless it is given to `open_lanes`.

Each is a module of its own. One that needs another package is an extra, and imported by its
module's name: ``trio_lanes.instruments.prometheus``, ``trio_lanes.instruments.otel``.
"""

from .logging import LoggingInstrument as LoggingInstrument
