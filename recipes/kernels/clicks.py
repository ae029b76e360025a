"""This kernel walks through clicks in order of time. It finds what is known before each, and articles that were not clicked.

An article is *recent* while one of its clicks is no older than the horizon. `active_A` lists the recent articles, in an order
that depends on the past alone; `place_A` is an article's place there, -1 where it is not recent. Plain twin:
`reference/clicks.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT


@njit(inline="always")
def _forget(article, active, recent_A, place_A, active_A):
    """Drop one click of an article that is too old now; return how many articles are recent."""
    recent_A[article] -= 1
    if recent_A[article] > 0:
        return active
    last, place = active_A[active - 1], place_A[article]
    active_A[place], place_A[last] = last, place
    place_A[article] = -1
    return active - 1


@njit(**JIT)
def walk_clicks(
    first, time_ms_C, article_C, user_C, session_C, horizon_ms, random_BK, state_2,
    recent_A, place_A, active_A, seen_ms_A, clicked_ms_U, clicks_S, previous_S,
    article_BT, recent_BT, age_ms_BT, pause_ms_B, clicks_B, previous_B,
):  # fmt: skip
    """Continue at click `first` and take one click for each line of `random_BK` (numbers in [0, 1)).

    The state is carried from call to call: `state_2` (recent articles, clicks that are too old), of each article its recent
    clicks, its place and its first click (-1: none), of each user the last click (-1: none), of each session its clicks and
    the article of the last one (-1: none). The outputs are, for each click: T articles, the clicked one and one for each random
    number (-1 where no other is recent; all -1 where the clicked one is not), with their recent clicks and the time since
    their first one; the time since the user's last click (-1: none); the session's clicks so far, and the article of its
    last one.
    """
    active, old = state_2[0], state_2[1]
    for b in range(len(random_BK)):
        c = first + b
        now, article, user, session = time_ms_C[c], article_C[c], user_C[c], session_C[c]
        while old < c and time_ms_C[old] < now - horizon_ms:
            active = _forget(article_C[old], active, recent_A, place_A, active_A)
            old += 1
        place = place_A[article]
        offered = place >= 0
        article_BT[b, 0] = article if offered else -1
        for k in range(random_BK.shape[1]):
            drawn = np.int64(random_BK[b, k] * (active - 1))
            drawn += drawn >= place
            article_BT[b, k + 1] = active_A[drawn] if offered and active > 1 else -1
        for t in range(article_BT.shape[1]):
            shown = article_BT[b, t]
            recent_BT[b, t] = recent_A[shown] if shown >= 0 else 0
            age_ms_BT[b, t] = now - seen_ms_A[shown] if shown >= 0 else 0
        pause_ms_B[b] = now - clicked_ms_U[user] if clicked_ms_U[user] >= 0 else -1
        clicks_B[b], previous_B[b] = clicks_S[session], previous_S[session]
        if not offered:
            active_A[active], place_A[article] = article, active
            active += 1
        recent_A[article] += 1
        if seen_ms_A[article] < 0:
            seen_ms_A[article] = now
        clicked_ms_U[user] = now
        clicks_S[session] += 1
        previous_S[session] = article
    state_2[0], state_2[1] = active, old
