"""A command that imports this first begins with SIGHUP as nohup leaves it, or as without; the tests may run under either."""

from __future__ import annotations

import os
import signal

signal.signal(signal.SIGHUP, getattr(signal, os.environ["SIGHUP_AT_THE_START"]))
