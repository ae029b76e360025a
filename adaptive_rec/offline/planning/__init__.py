"""Runs planned before they are made: rehearsed with small tables, fitted to a machine's memory, their hot lookups predicted."""
