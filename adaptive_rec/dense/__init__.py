"""The dense part of a model: forward, backward, update, evaluation."""
