"""A trained model in plain PyTorch: ``Model(folder).scores({"user": [17, 3], "item": ["a", "b"], ...})``, or from the shell
``python model.py rows.csv``, which prints a score for each row.

Columns are a dictionary, a pandas or polars frame, or an Arrow table or record batch. A column has one value for each row: a
number, a text (bytes are UTF-8), or None, "", NaN, pd.NA and NaT for a missing one; a column of lists has a list (or a text with
the schema's separator, or such as "[17, 3]"). Values that were not in the training data share one row of their table;
raw ids without a row of their own share its first ones. What cannot be scored raises ValueError. Needs torch and numpy.
"""

import ast
import csv
import gzip
import io
import json
import re
import signal
import sys
import zlib
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from uuid import UUID

import numpy as np
import torch
from torch import nn

WORDS = "|NA|N/A|n/a|<NA>|#N/A|NaN|nan|-nan|NaT|NULL|Null|null|None|none|\\N".split("|")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
HEX = re.compile(r"[0-9a-fA-F]{1,8}")
INTEGER = re.compile(r"(0|-?[1-9][0-9]*)(\.0+)?")
CLOSING = {"[": "]", "(": ")", "{": "}"}
CALL = re.compile(r"(?:array|frozenset|set|deque)\((.*?)(?:,\s*dtype=[^()]*)?\)", re.DOTALL)
SCALAR = re.compile(r"\bnp\.\w+\(([^()]*)\)")
PART = re.compile(
    r"""\s*(?:("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*(?:,|$|(?=["']))|([^,\s"'\[\]{}][^,"\[\]{}]*?)\s*(?:,|$)|,)""",
    re.DOTALL,
)
ESCAPED = re.compile(
    r"""(?:[^\\]|\\(?:[\\'"abfnrtv\n]|[0-3]?[0-7]{1,2}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}))*""", re.DOTALL
)
WHOLE = re.compile(r"(-?[0-9]+)\.0*")
EXPONENT = re.compile(r"-?[0-9]+(\.[0-9]*[eE]\+?|[eE]\+)[0-9]+")
LARGEST = float(np.finfo(np.float32).max)
LAST_SECOND = 253_402_300_800
PERIODS = {"hour": (0, 86400), "weekday": (3 * 86400, 7 * 86400)}
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


def plain(value):
    """Return a value of NumPy, torch, pandas, Arrow or polars as Python has it, and None for one that is missing."""
    if type(value) in (str, int, float, bool, type(None)):
        return value
    if hasattr(value, "as_py"):
        value = value.as_py()
    elif hasattr(value, "to_list"):
        value = value.to_list()
    elif hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(each) for each in value]
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, Decimal):
        return None if value.is_nan() else int(value) if value.is_finite() and value == value.to_integral_value() else value
    return bytes(value).decode() if isinstance(value, (bytes, bytearray, memoryview)) else value


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


def of_all(values, column, read):
    """Return what `read` makes of each value. Raises ValueError, which names column and row."""
    found = []
    for row, value in enumerate(values, 1):
        try:
            found.append(read(plain(value)))
        except UnicodeDecodeError:
            raise ValueError(f"column {column['column']!r}, row {row}: must be in UTF-8, got {value!r:.60}") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"column {column['column']!r}, row {row}: {error}, got {value!r:.60}") from None
    return found


def transformed(values, column):
    """Return a dense column (S,) as the model sees it, in float32."""
    transform = column["transform"]
    if transform.split("_")[0] in PERIODS:
        return clock(of_all(values, column, partial(seconds, unit=column.get("unit", ""))), column).astype(np.float32)
    read = partial(number, logs="log" in transform, clip=column.get("clip"), pattern=column.get("format"))
    numbers = np.array(of_all(values, column, read), dtype=np.float64)
    missing = np.isnan(numbers)
    if "standard" in transform:
        numbers = (numbers.astype(np.float32).astype(np.float64) - column["mean"]) / column["deviation"]
    return np.where(missing, column["missing"], numbers).astype(np.float32)


def clock(times, column):
    """Return the sine or the cosine of the time of day or of the week (S,), of times in seconds, None for a missing one."""
    of, function = column["transform"].split("_")
    since, period = PERIODS[of]
    angles = [(time + since) % period * (2 * np.pi / period) for time in times if time is not None]
    found = np.full(len(times), column["missing"], dtype=np.float64)
    found[[time is not None for time in times]] = getattr(np, {"sine": "sin", "cosine": "cos"}[function])(angles)
    return found


def seconds(value, unit):
    """Return a time in seconds since 1970, UTC, of a number in the column's unit, an ISO text or a date."""
    value = value.strip() if isinstance(value, str) else value
    if value is None or value != value or (isinstance(value, str) and value in WORDS):
        return None
    is_number = isinstance(value, (int, float)) or (isinstance(value, str) and NUMBER.fullmatch(value))
    if is_number and unit.startswith("yy"):
        digits = str(int(float(value))).zfill(len(unit))
        parts = [int(digits[at : at + 2]) for at in range(len(digits) - len(unit.lstrip("y")), len(digits), 2)]
        year = int(digits[: len(digits) - 2 * len(parts)]) + (0 if unit.startswith("yyyy") else 2000)
        value = datetime(year, *(parts + [1])[: max(2, len(parts))])
    elif is_number:
        found = float(value) / {"": 1, "s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
        if abs(found) > LAST_SECOND:
            raise ValueError("must be a time in the unit of the column")
        return found
    if not hasattr(value, "timetuple"):
        value = datetime.fromisoformat(str(value))
    zone = getattr(value, "tzinfo", None) or UTC
    return datetime(*value.timetuple()[:6], getattr(value, "microsecond", 0), zone).timestamp()


def number(value, logs, clip=None, pattern=None):
    """Return a number, its logarithm where `logs`, and NaN for a missing one. `clip`: the lowest and the highest number.
    `pattern`: how texts have numbers that are written for people, and the decimal point."""
    if isinstance(value, str) and pattern:
        found = written(value.strip(), *pattern)
    elif isinstance(value, str):
        value = value.strip()
        value = {"true": "1", "false": "0"}.get(value.lower(), value)
        found = np.nan if value in WORDS else float(value) if NUMBER.fullmatch(value) else np.inf
    else:
        found = np.nan if value is None else float(value)
    if clip and abs(found) < np.inf:
        found = min(max(found, clip[0]), clip[1])
    if logs:
        found = np.log1p(max(found, 0.0)) if found == found else found
    if abs(found) > LARGEST:
        raise ValueError("must be a number, finite in 32 bits")
    return found


def written(text, pattern, point):
    """Return a number that is written for people, such as $1,234.50 or (5)."""
    found = re.fullmatch(pattern, text)
    if text in WORDS:
        return np.nan
    if found is None or bool(found["open"]) != bool(found["close"]) or (found["sign"] and found["inner"]):
        return np.inf
    digits = re.sub(f"[^0-9eE+{point}-]", "", found["number"]).replace(point, ".")
    value = -float(digits) if {*found["open"], *found["sign"], *found["inner"]} & {*"(-−"} else float(digits)
    return value / 100 if found["percent"] else value


def values_of(value, column, raw=False):
    """Return the values of a row's field, None for a missing one, as the model knows them: whole numbers, of 64 bits where they
    are raw ids, floats, or texts, which booleans and whole numbers of any size are too."""
    if isinstance(value, str) and (column["separator"] or column.get("brackets")):
        value = texts_of(value, column["separator"])
    if not column["list"]:
        return [one(value, column["type"], raw)]
    if isinstance(value, (list, tuple, np.ndarray)):
        return [one(each, column["type"], raw) for each in value]
    if value is None or value != value:
        return []
    raise ValueError("must be a list of values")


def texts_of(text, separator):
    """Return the values that a text holds, None for a missing one."""
    if not separator:
        return [] if text.strip() in WORDS else listed(text)
    if text[:1] == "[" and text[-1:] == "]":
        try:
            return listed(text)
        except ValueError:
            pass
    return text.split(separator) if text else []


def listed(text):
    """Return the values of a list as JSON, Python or NumPy write one, None for a missing one."""
    text = text.strip()
    if found := CALL.fullmatch(text):
        text = found[1].strip() or "[]"
    text = SCALAR.sub(r"\1", text) if "np." in text else text
    rule = "must be a list such as [27, 9]"
    if len(text) < 2 or CLOSING.get(text[0]) != text[-1]:
        raise ValueError(rule)
    body, at, parts = text[1:-1].strip(), 0, []
    while at < len(body):
        found = PART.match(body, at)
        if found is None:
            raise ValueError(rule)
        at = found.end()
        parts.append(found[1] or found[2] or "null")
    if len(parts) == 1 and "," not in body and body[0] not in "\"'":
        words = body.split()
        parts = words if all(NUMBER.fullmatch(word) or word in WORDS or word == "..." for word in words) else parts
    if "..." in parts or (text[0] == "{" and any(":" in part or "=" in part for part in parts if part[0] not in "\"'")):
        raise ValueError(rule)
    return [value_of(part) for part in parts]


def value_of(part):
    """Return a value of a list as a text, None for a missing one."""
    if part[0] not in "\"'":
        found = WHOLE.fullmatch(part)
        part = part.lower() if part in ("True", "False") else part
        return None if part in WORDS else found[1] if found else part
    if "\\" not in part:
        return part[1:-1]
    try:
        try:
            value = json.loads(part, strict=False)
        except ValueError:
            value = ast.literal_eval(part if ESCAPED.fullmatch(part) else "")
        value.encode()
    except (SyntaxError, ValueError):
        raise ValueError("must have escapes of JSON or Python in its texts") from None
    return value


def one(value, kind, raw):
    value = value.item() if hasattr(value, "item") else value  # of numpy and torch
    if value is None or value == "" or value != value:
        return 0 if kind == "hex" else None
    if kind == "hex":
        return hexadecimal(value)
    if isinstance(value, UUID):
        value = str(value)
    if not isinstance(value, (str, int, float, Decimal)):
        raise ValueError("must be a whole number or a text")
    if kind == "text" and isinstance(value, (str, bool)):
        return value if isinstance(value, str) else str(value).lower()
    if isinstance(value, str) and value.strip() in WORDS:
        return None
    if kind == "boolean":
        return boolean(value)
    if kind == "float":
        return finite(value)
    digits = whole(value)
    if kind != "integer":
        return digits
    if raw and not -(2**63) < int(digits) < 2**63:
        raise ValueError("must be a whole number of 64 bits above -2^63")
    return int(digits)


def hexadecimal(value):
    if isinstance(value, str):
        if not HEX.fullmatch(value):
            raise ValueError("must be a hexadecimal number of at most 8 digits")
        return int(value, 16)
    if not (isinstance(value, int) and 0 <= value < 1 << 32):
        raise ValueError("must be a hexadecimal number of at most 8 digits, or a whole number of 32 bits")
    return value


def boolean(value):
    """Return the text of a boolean in any spelling."""
    word = re.sub(r"^([01])(\.0+)?$", r"\1", str(value).strip().lower())
    if word not in ("true", "t", "1", "false", "f", "0"):
        raise ValueError("must be true or false (or 1 or 0)")
    return "true" if word in ("true", "t", "1") else "false"


def finite(value):
    """Return a number as a float."""
    if isinstance(value, str) and not NUMBER.fullmatch(value.strip()):
        raise ValueError("must be a finite number")
    found = float(value) + 0.0  # -0 is 0
    if abs(found) > sys.float_info.max:
        raise ValueError("must be a finite number")
    return found


def whole(value):
    """Return the digits of a whole number in any spelling. A float from 2^53 on may have been another one."""
    if isinstance(value, bool):
        return str(int(value))
    text = str(value).strip()
    found = INTEGER.fullmatch(text)
    if found and (not isinstance(value, float) or abs(value) < 1 << 53):
        return found[1]
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return str(int(value))
    if isinstance(value, (str, float)) and EXPONENT.fullmatch(text) and abs(float(text)) < 1 << 53:
        number = Decimal(text)
        if number == number.to_integral_value():
            return str(int(number))
    raise ValueError("must be a whole number")


def table_of(path, delimiter="", encoding="utf-8", columns=(), label="", escape=""):
    """Return the columns of a CSV or TSV file, plain or .gz, whose first line names them unless they are given; the label, by
    default the first of those given, may be left out. Raises ValueError where it is none."""
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", newline="", encoding=encoding.replace("utf-8", "utf-8-sig")) as lines:
            first = next(lines, "")
            mark = delimiter or max(",\t;|", key=first.count)
            names, *rows = rows_of("".join(chain([first], lines)), mark, escape) or [[]]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except (UnicodeError, csv.Error, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a CSV or TSV file in {encoding}, plain or .gz, it is none: {error}") from None
    if columns and names and names != list(columns):
        left_out = (label or columns[0]) if len(columns) - len(names) == 1 else ""
        names, rows = [name for name in columns if name != left_out], [names, *rows]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"{path}, row {number}: must have {len(names)} fields between {mark!r}, got {len(row)}")
    if not rows:
        raise ValueError(f"{path} must name its columns in the first line and hold at least one row, it has none")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def rows_of(text, mark, escape):
    """Return the fields of each row. Where it is not known whether a backslash escapes marks, both ways are tried."""
    if escape not in ("", '"'):
        return records(doubled(text, mark, escape), mark)
    if escape or '\\"' not in text:
        return records(text, mark)
    ways = [unbroken(text, mark), unbroken(doubled(text, mark, "\\"), mark)]
    if None not in ways and len(ways[0]) != len(ways[1]):
        raise csv.Error("a backslash before a mark may or may not escape it; write marks inside fields twice")
    return next((way for way in ways if way is not None), None) or records(text, mark)


def records(text, mark, strict=False):
    return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=strict) if row]


def unbroken(text, mark):
    """Return the rows of a text that breaks no rule, else None."""
    try:
        rows = records(text, mark, strict=True)
    except csv.Error:
        return None
    return rows if all(len(row) == len(rows[0]) for row in rows) else None


def doubled(text, mark, escape):
    """Return a text with doubled quotation marks in place of those after the escape character, within quoted fields."""
    begin, sign = f"(?:^|(?<=[\\r\\n{re.escape(mark)}]))", re.escape(escape)
    inside = re.compile(f'{begin}"(?:[^"{sign}]|{sign}.|"")*', re.DOTALL)
    pair = re.compile(f'{sign}(["{sign}])')
    return inside.sub(lambda field: pair.sub(lambda two: '""' if two[1] == '"' else two[1], field[0]), text)


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
