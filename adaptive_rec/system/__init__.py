"""What the package asks of the operating system."""
