"""Trackers that come with the package, what they are given, and the threads that give it to them."""
