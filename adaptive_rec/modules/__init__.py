"""Embeddings in two tiers for a training loop of the user's own: modules under autograd, and the runtime that they share."""
