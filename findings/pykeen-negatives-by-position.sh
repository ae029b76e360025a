#!/usr/bin/env bash
# pykeen 1.11.1: BasicNegativeSampler draws no side: the first half of a batch gets corrupted heads only, the second corrupted tails only.
#
# Guess before the run: of 100 negatives of a triple about 50 have another head and 50 another tail; its documentation says that head or
# tail is chosen randomly for a triple. Seen: all 100 are of one side, by where the triple stands in the batch. A TriplesFactory sorts its
# triples, so negatives of a graph of clicks and purchases have wrong items for the users of the second half of the list and none for the
# others. In a training (an epoch shuffles) each triple has one side alone in each epoch, and changes over epochs.
# BernoulliNegativeSampler draws a side for each negative.
# What it means: negatives that are drawn once (for a validation set, a classifier, an AUC) compare some users with items and others
# with users, and a short training never shows many positives a wrong item. Shuffle, draw twice with corruption_scheme=("head",) and
# ("tail",), or take the Bernoulli sampler.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pykeen==1.11.1 torch==2.13.0 numpy==2.1.3
PYKEEN_HOME="$folder" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import logging
from importlib.metadata import version

import numpy as np
import torch
from pykeen.models import TransE
from pykeen.sampling import BasicNegativeSampler, BernoulliNegativeSampler
from pykeen.training import SLCWATrainingLoop
from pykeen.triples import TriplesFactory

logging.disable(logging.CRITICAL)
assert version("pykeen") == "1.11.1", version("pykeen")
USERS, NEGATIVES = 100, 100
draws = np.random.default_rng(0)
triples = [(f"user{user:03d}", "clicks", f"item{item:03d}") for user in range(USERS) for item in draws.choice(500, 20, replace=False)]
draws.shuffle(triples)
factory = TriplesFactory.from_labeled_triples(np.array(triples))


def heads(positives, negatives):
    """Return how many negatives of each triple have another head; the others have another tail."""
    return (negatives[..., 0] != positives[:, None, 0]).sum(1)


def sampled(sampler):
    positives = factory.mapped_triples
    made = sampler(mapped_triples=positives, num_entities=factory.num_entities, num_relations=1, num_negs_per_pos=NEGATIVES)
    count = heads(positives, made.sample(positives)[0])
    users = len(set(positives[count < NEGATIVES, 0].tolist()))
    print(f"{sampler.__name__}: corrupted heads of {NEGATIVES} between {count.min()} and {count.max()}, mean {count.float().mean():.1f}; "
          f"{((count > 0) & (count < NEGATIVES)).float().mean():.0%} of triples have both sides; users with a wrong item: {users} of {USERS}")
    return count, users


torch.manual_seed(0)
count, users = sampled(BasicNegativeSampler)
assert set(count.tolist()) == {0, NEGATIVES} and users == USERS // 2
count, users = sampled(BernoulliNegativeSampler)
assert ((count > 0) & (count < NEGATIVES)).all() and users == USERS

epochs = []


class Recorder(BasicNegativeSampler):
    def corrupt_batch(self, positive_batch):
        negatives = super().corrupt_batch(positive_batch)
        epochs.append((positive_batch.clone(), heads(positive_batch, negatives)))
        return negatives


model = TransE(triples_factory=factory, embedding_dim=4, random_seed=0)
loop = SLCWATrainingLoop(model=model, triples_factory=factory, negative_sampler=Recorder, optimizer="Adam",
                         negative_sampler_kwargs={"num_negs_per_pos": NEGATIVES})
loop.train(triples_factory=factory, num_epochs=4, batch_size=250, use_tqdm=False)
sides = {}
for positives, count in epochs:
    for triple, number in zip(positives.tolist(), count.tolist()):
        sides.setdefault(tuple(triple), []).append(number)
alone = np.mean([all(number == NEGATIVES for number in numbers) for numbers in sides.values()])
print(f"training of 4 epochs: numbers of corrupted heads {sorted({number for numbers in sides.values() for number in numbers})}; "
      f"{alone:.1%} of {len(sides):,} triples never met a wrong item")
assert {number for numbers in sides.values() for number in numbers} == {0, NEGATIVES} and 0.03 < alone < 0.1
PYTHON
