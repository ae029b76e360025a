"""XDL: a parameter server, with one request for each table, one after the other, and nothing prepared ahead.

Paper: Jiang et al., "XDL: An Industrial Deep Learning Framework for High-dimensional Sparse Data" (DLP-KDD 2019), the baseline of
FAE, Hotline and Slipstream. As there: tables are in host memory, and every table has a request to gather and one to update, here
in its synchronous mode; a batch is read, classified and gathered when its step begins. Left out is what has no part in a step on
one machine: servers, networks, hashed keys, asynchronous updates. In several processes each is a server of the rows that it owns,
and every table has a request to each of them. A request finds distinct rows and sums their gradients, as the
paper's server merges requests, so results equal plain steps. Compared with `hybrid` it shows what one call for all tables and
reading ahead are worth.
"""

from __future__ import annotations

from adaptive_rec.policies.hybrid import Hybrid


class XDL(Hybrid):
    name = "xdl"
    request_per_table = True
    prefetches = False


POLICY = XDL
