"""What lets others see and steer a run while it trains: commands in, snapshots and shared state out, the sidecar kept alive."""
