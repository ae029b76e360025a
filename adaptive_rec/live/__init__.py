"""Lets other processes see and steer a run while it trains: commands come in, snapshots and shared state go out."""
