"""Policies replayed over a stream of lookups without a model: what a budget would catch, what a step would take."""
