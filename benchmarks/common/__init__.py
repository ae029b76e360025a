"""What the benchmarks of the GPU and of the CPU share: shapes, runs of ours, rivals, facts of the machine, statistics."""
