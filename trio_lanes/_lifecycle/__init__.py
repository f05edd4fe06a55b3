"""Control of lanes: clear, reset, pause, configure, drain."""
