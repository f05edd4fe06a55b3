"""Instruments that report the events of lanes to other systems. Pass them to `open_lanes`.

Each instrument is a module of its own. An instrument that needs another package is an extra; import
it from its module: ``trio_lanes.instruments.prometheus``, ``trio_lanes.instruments.otel``.
"""

from .logging import LoggingInstrument as LoggingInstrument
