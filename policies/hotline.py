"""Hotline: popular rows are on the device, found while training; popular samples run while cold rows are gathered.

Paper: Adnan et al., "Heterogeneous Acceleration Pipeline for Recommendation System Training" (ISCA 2024). There an accelerator
card learns the popular rows with a cache-like tracker; here a count-min sketch does so in software. As in the paper, both
micro-batches of a mini-batch read the same parameters and every row is updated once, so results equal plain steps. Better here:
the hot set follows drift in every window instead of being learned once in a while.
"""

from __future__ import annotations

from adaptive_rec.policy import AccessView, Policy, Wish


class Hotline(Policy):
    name = "hotline"
    tracks_popularity = True

    def place(self, view: AccessView) -> Wish:
        return Wish(view.candidate_rows, view.candidate_scores)  # hot rows stay while theirs are as good


POLICY = Hotline
