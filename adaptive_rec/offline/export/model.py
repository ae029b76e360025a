"""A trained model in plain PyTorch: ``Model(folder).scores({"user": [17, 3], "item": ["a", "b"], ...})``, or from the shell
``python model.py rows.csv``, which prints a score for each row.

A column has one value for each row: a number, a text, or None, "" and NaN for a missing one; a column of lists has a list
(or a text with the schema's separator). Values that were not in the training data share one row of their table. Needs torch and
numpy.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

WORDS = ("", "NA", "N/A", "NaN", "nan", "NULL", "Null", "null", "None", "none", "\\N", None)


class Model(nn.Module):
    def __init__(self, folder):
        super().__init__()
        folder = Path(folder)
        self.facts = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        with np.load(folder / "dense.npz", allow_pickle=False) as arrays:
            state = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        tables = {table["name"]: table for table in self.facts["tables"]}
        self.weights, self.ids, self.maps = {}, {}, {}
        for name, table in tables.items():
            self.weights[name] = torch.from_numpy(
                np.load(folder / "tables" / table["weights"], mmap_mode="c", allow_pickle=False)
            )
            with (folder / "ids" / table["ids"]).open(encoding="utf-8") as lines:
                self.ids[name] = {
                    json.loads(line): row % table["rows"] for row, line in enumerate(lines, self.facts["first_id"])
                }
            self.maps[name] = state.get(f"rows.maps.{table['map']}.weight")
        self.bottom, self.top = mlp(state, "bottom"), mlp(state, "top")[:-1]
        self.down, self.up = (
            [layer for layer in mlp(state, f"interaction.{way}") if not isinstance(layer, nn.ReLU)]
            for way in ("down", "up")
        )

    def forward(self, dense, *ids):
        """Return logits (S,) of dense features (S, X) and, for each sparse column, ids (S, L); -1 fills up shorter lists."""
        vectors = [self.bottom(dense)]
        for column, ids_SL in zip(self.facts["sparse"], ids, strict=True):
            present = (ids_SL >= 0).unsqueeze(2)
            rows = nn.functional.embedding(ids_SL.clamp(min=0), self.weights[column["table"]]) * present
            pooled = rows.sum(1) if self.facts["pooling"] == "sum" else rows.sum(1) / present.sum(1).clamp(min=1)
            mapped = self.maps[column["table"]]
            vectors.append(pooled if mapped is None else pooled @ mapped.T)
        vectors = torch.stack(vectors, dim=1)
        if self.down:  # the cross network of DCN v2
            first = crossed = vectors.flatten(1)
            for down, up in zip(self.down, self.up, strict=True):
                crossed = first * up(down(crossed)) + crossed
            return self.top(crossed).squeeze(1)
        low, high = np.tril_indices(vectors.shape[1], -1)  # the products of all pairs
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, low, high]
        return self.top(torch.cat([vectors[:, 0], products], dim=1)).squeeze(1)

    def scores(self, columns):
        """Return the probability of label 1 for each row."""
        with torch.no_grad():
            return torch.sigmoid(
                self(self.dense(columns), *(self.rows_of(column, columns) for column in self.facts["sparse"]))
            )

    def dense(self, columns):
        rows = len(columns[self.facts["sparse"][0]["column"]])
        features = [transformed(columns[each["column"]], each) for each in self.facts["dense"]]
        return torch.from_numpy(np.stack(features, axis=1)) if features else torch.ones(rows, 1)

    def rows_of(self, column, columns):
        """Return the ids (S, L) of a sparse column's values."""
        known, bags = self.ids[column["table"]], [values_of(value, column) for value in columns[column["column"]]]
        ids = torch.full((len(bags), max(1, *map(len, bags)) if bags else 1), -1)
        for bag, row in zip(bags, ids, strict=True):
            for place, value in enumerate(bag):
                row[place] = self.facts["missing_id"] if value is None else known.get(value, self.facts["unknown_id"])
        return ids


def mlp(state, prefix):
    """Build linear layers from their weights, each with a ReLU after it."""
    layers = []
    for name in [name for name in state if name.startswith(f"{prefix}.") and name.endswith(".weight")]:
        outputs, inputs = state[name].shape
        weights = {"weight": state[name], "bias": state.get(name[:-6] + "bias", torch.zeros(outputs))}
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers[-2].load_state_dict(weights)
    return nn.Sequential(*layers)


def transformed(values, column):
    """Return a dense column (S,) as the model sees it, in float32."""
    numbers = np.array([np.nan if value in WORDS else float(value) for value in values], dtype=np.float64)
    missing = np.isnan(numbers)
    if column["transform"] == "log":
        numbers = np.log1p(np.maximum(numbers, 0))
    if column["transform"] == "standard":
        numbers = (numbers.astype(np.float32) - column["mean"]) / column["deviation"]
    return np.where(missing, column["missing"], numbers).astype(np.float32)


def values_of(value, column):
    """Return the values of a row's field, None for a missing one, as the model knows them: whole numbers or texts."""
    if column["separator"] and isinstance(value, str):
        value = value.split(column["separator"]) if value else []
    if column["list"]:
        return [one(each, column["type"]) for each in (() if value is None else value)]
    return [one(value, column["type"])]


def one(value, kind):
    if value is None or value == "" or value != value:
        return None
    if kind == "integer":
        return int(float(value)) if "." in str(value) else int(value)
    return (
        str(int(value)) if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
    )


if __name__ == "__main__":
    model = Model(Path(__file__).parent)
    file = {"delimiter": ",", "encoding": "utf-8", **model.facts["file"]}
    with open(sys.argv[1], newline="", encoding=file["encoding"].replace("utf-8", "utf-8-sig")) as rows:
        table = list(csv.DictReader(rows, delimiter=file["delimiter"]))
    for score in model.scores({name: [row[name] for row in table] for name in table[0]} if table else {}):
        print(f"{score:.7f}")
