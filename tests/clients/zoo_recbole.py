"""All models of RecBole 1.2 with a table, on small files of its own format, through its Config, datasets and loaders."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tests.clients.client import Client
from tests.clients.old_names import restore_old_names

KINDS = ("context_aware", "general", "knowledge_aware", "sequential")
USERS, ITEMS, RELATIONS, MORE_ENTITIES = 60, 90, 6, 40
NAME = "tiny"

BASE: dict[str, Any] = {
    "seed": 5,
    "use_gpu": False,
    "show_progress": False,
    "train_batch_size": 64,
    "eval_batch_size": 64,
    "state": "ERROR",
    "embedding_size": 8,
    "MAX_ITEM_LIST_LENGTH": 8,
    "metrics": ["Recall"],
    "valid_metric": "Recall@10",
    "topk": [10],
    "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"]},
}
FEATURES = {
    "inter": ["user_id", "item_id", "rating", "timestamp"],
    "user": ["user_id", "age", "job"],
    "item": ["item_id", "year", "genres"],
}
KINDS_OWN: dict[str, dict[str, Any]] = {
    "context_aware": {
        "load_col": FEATURES,
        "threshold": {"rating": 3},
        "train_neg_sample_args": None,
        "eval_args": {"split": {"RS": [0.8, 0.1, 0.1]}, "order": "RO", "group_by": None, "mode": "labeled"},
        "metrics": ["AUC"],
        "valid_metric": "AUC",
    },
    "general": {},
    "knowledge_aware": {
        "load_col": {
            "inter": ["user_id", "item_id"],
            "kg": ["head_id", "relation_id", "tail_id"],
            "link": ["item_id", "entity_id"],
        },
        "kg_embedding_size": 8,
    },
    "sequential": {"train_neg_sample_args": None},
}
PAIRS = {"train_neg_sample_args": {"distribution": "uniform", "sample_num": 1}}
PRETRAINED = {
    "load_col": {
        "inter": ["user_id", "item_id", "timestamp"],
        "kg": ["head_id", "relation_id", "tail_id"],
        "link": ["item_id", "entity_id"],
        "ent": ["ent_id", "ent_emb"],
        "rel": ["rel_id", "rel_emb"],
    },
    "additional_feat_suffix": ["ent", "rel"],
    "alias_of_entity_id": ["ent_id"],
    "alias_of_relation_id": ["rel_id"],
    "preload_weight": {"ent_id": "ent_emb", "rel_id": "rel_emb"},
    "kg_embedding_size": 8,
    "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"},
}
"""Settings of models that read vectors of entities that somebody has trained before."""
OWN: dict[str, dict[str, Any]] = {
    "ConvNCF": {"embedding_size": 64},
    "GRU4RecCPR": {"reranker_CAN_NUM": "20"},
    "NCL": {"num_clusters": 5},
    "SASRecCPR": {"reranker_CAN_NUM": "20"},
    "DIN": {**PAIRS, "load_col": FEATURES},
    "DIEN": {**PAIRS, "load_col": FEATURES},
    "FPMC": PAIRS,
    "TransRec": PAIRS,
    "SINE": {},
    "GRU4RecF": {"load_col": FEATURES, "selected_features": ["genres"]},
    "SASRecF": {"load_col": FEATURES, "selected_features": ["genres"]},
    "FDSA": {"load_col": FEATURES, "selected_features": ["genres"]},
    "S3Rec": {"load_col": FEATURES, "item_attribute": "genres", "train_stage": "pretrain"},
    "GRU4RecKG": PRETRAINED,
    "KSR": PRETRAINED,
}


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Write users, items, their interactions and a knowledge graph, as atomic files."""
    folder = tempfile.TemporaryDirectory()
    dice = random.Random(2)

    def write(kind: str, header: str, rows: Any) -> None:
        place = Path(folder.name) / NAME / f"{NAME}.{kind}"
        place.parent.mkdir(exist_ok=True)
        place.write_text("\n".join(["\t".join(header.split()), *("\t".join(map(str, row)) for row in rows)]) + "\n")

    viewed = [
        (user, item, dice.randint(1, 5), 1000 * user + time)
        for user in range(1, USERS + 1)
        for time, item in enumerate(dice.sample(range(1, ITEMS + 1), dice.randint(8, 20)))
    ]
    write("inter", "user_id:token item_id:token rating:float timestamp:float", viewed)
    users = [(user, 18 + user % 40, f"job{user % 7}") for user in range(1, USERS + 1)]
    write("user", "user_id:token age:token job:token", users)
    genres = [" ".join(f"g{g}" for g in sorted(dice.sample(range(12), dice.randint(1, 4)))) for _ in range(ITEMS)]
    items = [(item, 1970 + item % 30, genres[item - 1]) for item in range(1, ITEMS + 1)]
    write("item", "item_id:token year:token genres:token_seq", items)
    write("link", "item_id:token entity_id:token", [(item, f"e{item}") for item in range(1, ITEMS + 1)])
    entities = [f"e{number}" for number in range(1, ITEMS + MORE_ENTITIES + 1)]
    facts = {(dice.choice(entities), f"r{dice.randrange(RELATIONS)}", dice.choice(entities)) for _ in range(500)}
    write("kg", "head_id:token relation_id:token tail_id:token", sorted(facts))
    vectors = [[f"{dice.uniform(-1, 1):.4f}" for _ in range(8)] for _ in entities]
    write("ent", "ent_id:token ent_emb:float_seq", [(e, " ".join(v)) for e, v in zip(entities, vectors, strict=True)])
    relations = [(f"r{number}", " ".join(vectors[number])) for number in range(RELATIONS)]
    write("rel", "rel_id:token rel_emb:float_seq", relations)
    return folder


def _names() -> Iterator[tuple[str, str]]:
    """Yield kinds and names of the models that gradients train."""
    base = importlib.import_module("recbole.model.abstract_recommender").AbstractRecommender
    traditional = importlib.import_module("recbole.utils").ModelType.TRADITIONAL
    for kind in KINDS:
        package = importlib.import_module(f"recbole.model.{kind}_recommender")
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            for name, one in inspect.getmembers(module, inspect.isclass):
                own = one.__module__ == module.__name__ and name.lower() == found.name
                if own and issubclass(one, base) and getattr(one, "type", None) != traditional:
                    yield kind, name


@cache
def _prepared(kind: str, name: str) -> tuple[Any, Any]:
    """Return a model's config and the loader of its training data."""
    config_class = importlib.import_module("recbole.config").Config
    data = importlib.import_module("recbole.data")
    options = {**BASE, **KINDS_OWN[kind], **OWN.get(name, {}), "data_path": _folder().name}
    config = config_class(model=name, dataset=NAME, config_dict=options)
    importlib.import_module("recbole.utils").init_seed(5, True)
    train, *_ = data.data_preparation(config, data.create_dataset(config))
    if kind == "knowledge_aware":
        train.set_mode(importlib.import_module("recbole.utils").KGDataLoaderState.RSKG)
    return config, train


def _model(kind: str, name: str) -> nn.Module:
    config, train = _prepared(kind, name)
    importlib.import_module("recbole.utils").init_seed(5, True)
    return importlib.import_module("recbole.utils").get_model(name)(config, train._dataset)


def _batches(kind: str, name: str, steps: int) -> list[Any]:
    config, train = _prepared(kind, name)
    importlib.import_module("recbole.utils").init_seed(6, True)
    found: list[Any] = []
    while len(found) < steps:
        found += list(train)
    for batch in found[:steps]:
        for field, value in batch.interaction.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                batch.interaction[field] = value.double()
    return found[:steps]


def _loss(model: Any, batch: Any) -> Tensor:
    """Return the loss, summed over its parts, with that of the knowledge graph where the model has one of its own."""
    if hasattr(model, "e_step") and model.user_centroids is None:
        model.e_step()
    parts = [model.calculate_rs_loss(batch) if hasattr(model, "calculate_rs_loss") else model.calculate_loss(batch)]
    if hasattr(model, "calculate_kg_loss"):
        parts.append(model.calculate_kg_loss(batch))
    return sum(part.sum() for one in parts for part in (one if isinstance(one, tuple) else (one,)))  # type: ignore[return-value]


def clients() -> Iterator[Client]:
    restore_old_names()
    logging.disable(logging.WARNING)
    for kind, name in _names():
        yield Client(
            "RecBole",
            name,
            lambda kind=kind, name=name: _model(kind, name),
            lambda steps, kind=kind, name=name: _batches(kind, name, steps),
            _loss,
        )
