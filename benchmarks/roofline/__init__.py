"""The memory roof of this machine, and how near to it each kernel of a step works."""
