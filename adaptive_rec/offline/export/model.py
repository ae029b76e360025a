"""A trained model in plain PyTorch: ``Model(folder).scores({"user": [17, 3], "item": ["a", "b"], ...})``, or from the shell
``python model.py rows.csv``, which prints a score for each row.

Columns are a dictionary, a pandas or polars frame, or an Arrow table or record batch. A column has one value for each row: a
number, a text (bytes are UTF-8), or None, "", NaN, pd.NA and NaT for a missing one; a column of lists has a list (or a text with
the schema's separator, or such as "[17, 3]"). Values that were not in the training data share one row of their table;
raw ids without a row of their own share its first ones. What cannot be scored raises ValueError. Needs torch and numpy.
"""

import json
import signal
import sys
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import nn

from adaptive_rec.offline.export.model_files import table_of
from adaptive_rec.offline.export.model_values import of_all, transformed, values_of

BITS = (1 << 64) - 1
P1, P2, P3, P4, P5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


class Model(nn.Module):
    def __init__(self, folder):
        super().__init__()
        folder = Path(folder)
        self.facts = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        with np.load(folder / "dense.npz", allow_pickle=False) as arrays:
            state = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        tables = {table["name"]: table for table in self.facts["tables"]}
        self.type = getattr(torch, self.facts.get("precision", "float32"))
        self.weights, self.ids, self.maps = {}, {}, {}
        for name, table in tables.items():
            self.weights[name] = torch.from_numpy(
                np.load(folder / "tables" / table["weights"], mmap_mode="c", allow_pickle=False)
            )
            self.ids[name] = ids_of(folder, table, self.facts)
            self.maps[name] = state.get(f"rows.maps.{table['map']}.weight")
        self.bottom, self.top = mlp(state, "bottom"), mlp(state, "top")[:-1]
        self.down, self.up = (
            [layer for layer in mlp(state, f"interaction.{way}") if not isinstance(layer, nn.ReLU)]
            for way in ("down", "up")
        )

    def forward(self, dense, *ids):
        """Return logits (S,) of dense features (S, X) of any type and, for each sparse column, ids (S, L); -1 fills up shorter
        lists. They are computed in the precision of the training: float64, or float32, which rows of 16 bits are widened to."""
        vectors = [self.bottom(dense.to(self.type))]
        for column, ids_SL in zip(self.facts["sparse"], ids, strict=True):
            present = (ids_SL >= 0).unsqueeze(2)
            rows = nn.functional.embedding(ids_SL.clamp(min=0), self.weights[column["table"]]).to(self.type) * present
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
        columns = columns_of(columns)
        self.check(columns)
        with torch.no_grad():
            return torch.sigmoid(
                self(self.dense(columns), *(self.rows_of(column, columns) for column in self.facts["sparse"]))
            )

    def check(self, columns):
        """Raise ValueError unless the columns of the model are there, with one value for each row."""
        names = [each["column"] for each in (*self.facts["sparse"], *self.facts["dense"])]
        for name in names:
            if name not in columns:
                known = ", ".join(map(str, columns)) or "none"
                raise ValueError(f"columns must have {name!r}, a column of the training data, got {known:.300}")
            if columns[name] is None:
                raise ValueError(f"columns must have {name!r} once, several have this name")
            if isinstance(columns[name], str) or not hasattr(columns[name], "__len__"):
                raise ValueError(f"column {name!r} must be a list of values, got {columns[name]!r:.60}")
            rows, first = len(columns[name]), len(columns[names[0]])
            if rows != first:
                raise ValueError(f"columns must have as many rows as {names[0]!r}, {first}, got {rows} of {name!r}")

    def dense(self, columns):
        rows = len(columns[self.facts["sparse"][0]["column"]])
        features = [transformed(columns[each["column"]], each) for each in self.facts["dense"]]
        return torch.from_numpy(np.stack(features, axis=1)) if features else torch.ones(rows, 1)

    def rows_of(self, column, columns):
        """Return the ids (S, L) of a sparse column's values."""
        bags = of_all(columns[column["column"]], column, lambda value: values_of(value, column, self.facts["raw"]))
        ids = torch.full((len(bags), max(1, *map(len, bags)) if bags else 1), -1)
        lengths = torch.tensor([len(bag) for bag in bags], dtype=torch.int64)
        found = self.ids[column["table"]].of(list(chain.from_iterable(bags)))
        ids[torch.arange(ids.shape[1]) < lengths[:, None]] = torch.from_numpy(found)
        return ids


def columns_of(frame):
    """Return the columns of a dictionary, of a pandas or polars frame, or of an Arrow table or record batch, by name; None for
    columns of one name."""
    names = next((getattr(frame, each) for each in ("column_names", "columns") if hasattr(frame, each)), None)
    if names is None:
        return frame
    names = list(names)
    return {name: frame[name] if names.count(name) == 1 else None for name in names}


def ids_of(folder, table, facts):
    if table.get("folded"):
        return FoldedIds(table["rows"])
    return KeyRows(folder, table) if facts["raw"] else NumberedIds(folder, table, facts)


class FoldedIds:
    """The ids of a Criteo file's values, folded into the rows of a table."""

    def __init__(self, rows):
        self.rows = rows

    def of(self, values):
        return np.array(values, dtype=np.int64) % self.rows


class NumberedIds:
    """The ids of a table's values, which are numbered. Of a Criteo file, new values have the id -1, which adds nothing. Where the
    numbers are raw ids, their rows are looked up."""

    def __init__(self, folder, table, facts):
        self.missing, self.unknown = facts["missing_id"], facts["unknown_id"]
        with (folder / "ids" / table["ids"]).open(encoding="utf-8") as lines:
            self.known = {json.loads(line): number for number, line in enumerate(lines, facts["first_id"])}
        if "missing_value" in table:
            self.known[table["missing_value"]] = self.missing
        self.rows, self.keys = table["rows"], KeyRows(folder, table) if "keys" in table else None

    def of(self, values):
        ids = [self.missing if value is None else self.known.get(value, self.unknown) for value in values]
        return self.look_up(np.array(ids, dtype=np.int64))

    def look_up(self, ids):
        """Return the row of each number (N); -1 has none."""
        return self.keys.look_up(ids) if self.keys else np.where(ids < 0, ids, ids % self.rows)


class KeyRows:
    """The rows of a table's raw ids. A whole number is its own key, a float has its bits as one, a text XXH64 of its bytes, a
    missing value the smallest number of 64 bits. Keys without a row of their own share the table's first rows."""

    def __init__(self, folder, table):
        self.keys, self.rows = (
            np.load(folder / "ids" / table[name], mmap_mode="r", allow_pickle=False) for name in ("keys", "key_rows")
        )
        self.salt, self.shared = np.uint64(int(table["salt"], 16)), np.uint64(table["shared_rows"])

    def of(self, values):
        return self.look_up(np.array([key_of(value) for value in values], dtype=np.int64))

    def look_up(self, keys):
        """Return the row of each key (N)."""
        mixed = keys.view(np.uint64) ^ self.salt
        mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        rows = ((mixed >> np.uint64(32)) % self.shared).astype(np.int64)
        if len(self.keys):
            places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            own = self.keys[places] == keys
            rows[own] = self.rows[places[own]]
        return rows


def key_of(value):
    if isinstance(value, float):
        return int(np.float64(value).view(np.int64))
    return xxh64(value) if isinstance(value, str) else -(2**63) if value is None else value


@lru_cache(1 << 16)
def xxh64(text):
    """Return XXH64 of a text's bytes in UTF-8, with seed 0, as a number with a sign."""

    def rotated(value, bits):
        return (value << bits | value >> 64 - bits) & BITS

    def mixed(lane, word):
        return rotated(lane + word * P2 & BITS, 31) * P1 & BITS

    data = text.encode()
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) - 7, 8)]
    value, first = P5, len(data) // 32 * 4
    if first:
        lanes = [P1 + P2 & BITS, P2, 0, -P1 & BITS]
        for at, word in enumerate(words[:first]):
            lanes[at % 4] = mixed(lanes[at % 4], word)
        value = sum(map(rotated, lanes, (1, 7, 12, 18))) & BITS
        for lane in lanes:
            value = (value ^ mixed(0, lane)) * P1 + P4 & BITS
    value = value + len(data) & BITS
    for word in words[first:]:
        value = rotated(value ^ mixed(0, word), 27) * P1 + P4 & BITS
    rest = data[len(words) * 8 :]
    if len(rest) >= 4:
        word, rest = int.from_bytes(rest[:4], "little"), rest[4:]
        value = rotated(value ^ word * P1 & BITS, 23) * P2 + P3 & BITS
    for byte in rest:
        value = rotated(value ^ byte * P5 & BITS, 11) * P1 & BITS
    value = (value ^ value >> 33) * P2 & BITS
    value = (value ^ value >> 29) * P3 & BITS
    value ^= value >> 32
    return value - (value >> 63 << 64)


def mlp(state, prefix):
    """Build linear layers from their weights, each with a ReLU after it."""
    layers = []
    for name in [name for name in state if name.startswith(f"{prefix}.") and name.endswith(".weight")]:
        outputs, inputs = state[name].shape
        weights = {"weight": state[name], "bias": state.get(name[:-6] + "bias", torch.zeros(outputs))}
        layers += [nn.Linear(inputs, outputs, dtype=state[name].dtype), nn.ReLU()]
        layers[-2].load_state_dict(weights)
    return nn.Sequential(*layers)


def main(words):
    """Print a score for each row of a file; return the exit code."""
    try:
        if len(words) != 1:
            raise ValueError(f"give one CSV or TSV file: python model.py rows.csv, got {len(words)} words")
        model = Model(Path(__file__).parent)
        for score in model.scores(table_of(words[0], **model.facts["file"])):
            print(f"{score:.7f}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # model.py rows.csv | head
    sys.exit(main(sys.argv[1:]))
