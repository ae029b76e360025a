"""Export of a trained model to files that plain PyTorch reads."""
