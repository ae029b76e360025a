"""Turns raw click logs into arrays that training reads."""
