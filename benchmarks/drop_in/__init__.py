"""What the modules cost in a training loop of one's own, beside `adaptive-rec train` and what else one could take."""
