"""How the rows of a batch get to its step and back."""
