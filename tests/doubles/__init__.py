"""Stand-ins for devices and for other processes, as late as the events between them permit."""
