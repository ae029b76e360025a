"""What the runtime learns on the fly: how often rows are touched, and how far they move."""
