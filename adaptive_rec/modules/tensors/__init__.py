"""Tensors whose values lie in tiers, what torch's functions and optimizers do with them."""
