"""Replay of policies over a stream of lookups without a model: hot lookups at each budget, predicted time of a step."""
