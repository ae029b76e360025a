"""Several processes beside TorchRec's: one model, the same batches, turns, and a network whose bytes are counted."""
