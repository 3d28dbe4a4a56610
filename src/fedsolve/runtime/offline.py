"""The switches that keep Flower and Ray from calling home: no telemetry, no update check, no packages at run time.

They are read when those libraries are imported, so they are set before.
"""

from __future__ import annotations

import os

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then listens on 127.0.0.1 alone
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as it will be by default; a warning otherwise
}


def switch_off() -> None:
    """Set the switches for this process and those it starts; what the user has set stays."""
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)
