"""Tracker for TensorBoard: figures as scalars, events as text, in the folder ``tensorboard`` of a run.

The calling thread writes the records. TensorBoard's own writer has a thread that prints a traceback when the disk is full.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.summary.writer.record_writer import RecordWriter
    from tensorboard.util.tensor_util import make_tensor_proto
except ImportError as error:
    raise ImportError(f"TensorBoard needs the extra track: pip install 'adaptive-rec[track]' ({error})") from error


class TensorBoard:
    """Event file with one record for each report, so that a figure costs little more than its bytes."""

    def __init__(self, folder: Path, step: int) -> None:
        place = folder / "tensorboard"
        place.mkdir(parents=True, exist_ok=True)
        seconds, rest = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.{rest:09d}"
        self._records = RecordWriter(open(place / name, "xb"))
        self._write(file_version="brain.Event:2")
        if step:  # a resumed run: figures of later steps are void
            self._write(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=scalars))

    def event(self, step: int, kind: str, text: str) -> None:
        shown = create_summary_metadata(display_name="", description="")
        value = Summary.Value(tag=f"events/{kind}", metadata=shown, tensor=make_tensor_proto([text]))
        self._write(step=step, summary=Summary(value=[value]))

    def close(self) -> None:
        self._records.close()

    def _write(self, **fields: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()
