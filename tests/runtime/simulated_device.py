"""A process that imports this finds a device, which is simulated; segments of rows on a disk are tiny."""

import torch

import tests.tiny_segments  # noqa: F401
from adaptive_rec.embedding.staged import cuda_streams
from adaptive_rec.runtime import assemble
from tests.doubles.late_streams import LateStreams

assemble.choose_device = lambda config: torch.device("cuda")
cuda_streams.CudaStreams = lambda *_: LateStreams(3)  # type: ignore[assignment, misc]
