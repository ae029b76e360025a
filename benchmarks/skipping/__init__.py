"""Where skipping samples pays on a CPU: `make study-skipping`."""
