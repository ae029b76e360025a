"""The commands, each file with its part of the command line and what it does. Nothing heavy is imported on loading."""
