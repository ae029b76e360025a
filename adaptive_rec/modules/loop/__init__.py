"""The runtime of a user's own training loop: gradients, steps, ranks and raw ids."""
