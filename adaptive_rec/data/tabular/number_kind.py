"""What a column of numbers is to a model, by its name and its first values: ids, a quantity, a time, or nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.tabular.calendar_numbers import calendar_unit
from adaptive_rec.data.tabular.dense_transform import transform_of
from adaptive_rec.data.tabular.kept import ROW_NAMES
from adaptive_rec.data.tabular.kinds import FLOAT_DIGITS, as_kind
from adaptive_rec.data.tabular.sample import Judged, Sample, words_in_order
from adaptive_rec.data.tabular.values import LARGEST

LEAST_ROWS = 1000
"""Fewer rows do not show that a column is different in each of them."""
LEAST_KEYS = 20
"""The same where its name says so: `id`, `row_id`."""
MANY_VALUES_RATIO = 0.2
"""Share of the rows with a value of their own above which a whole number is a quantity."""
FEW_VALUES = 100
"""Whole numbers with at most so many values are categories."""
FEWEST_VALUES = 10
"""With fewer values a column of numbers is either a category or a quantity, and not both."""
FEWEST_ROWS = 4096
"""The same of fewer rows, which do not tell two uses of a column apart."""
ROWS_OF_VALUE = 20
"""Mean rows of a value of a quantity from which on it is a category besides."""
ID_WORDS = frozenset(
    "id ids uid key code hash user item product movie film book isbn ad advertiser campaign creative banner session "
    "device zip postcode "
    "postal category cat brand shop store seller author query city country region state site page url ip type class genre "
    "sku asin "
    "customer visitor member client article song artist album track video channel group level status gender sex day "
    "weekday hour month "
    "position slot domain app model os browser language lang account partner publisher placement department aisle".split()
)
SURE_ID_WORDS = frozenset("id ids uid key code hash zip".split())
QUANTITY_WORDS = frozenset(
    "affinity age amount average avg balance clicks cost count counts ctr cvr distance duration freq frequency impressions "
    "income length likes mean price prob probability purchases quantity qty rate ratio revenue sales score size spend sum total "
    "views visits".split()
)
"""Words of names of numbers: the last word says what a column is, `video_duration` beside `age_group`."""
COUNT_WORDS = frozenset("num number n count total".split())
"""The same as the first word of several: `num_items`."""
TIME_WORDS = frozenset("time when timestamp datetime date ts created updated unixtime utc dt at".split())
CLOCK_WORDS = frozenset("timestamp timestamps datetime unixtime ts".split())
"""A column of one of these names is a time, whatever its numbers count from."""
CALENDAR_WORDS = frozenset("day weekday hour month".split())
"""Words of names of categories that times have too."""
SECONDS = (1e9, 2.2e9)
"""Unix times of 2001 to 2039."""
WEIGHTS = frozenset("weight weights sample_weight sample_weights instance_weight case_weight row_weight event_weight".split())

WEIGHTS_UNUSED = "the rows' weights, it seems: --weight names them; list it under dense if it is a feature"


class Told(NamedTuple):
    """What a column's name says."""

    is_id: bool
    is_time: bool
    is_clock: bool
    is_quantity: bool

    @classmethod
    def of(cls, name: str, without: frozenset[str] = frozenset()) -> Told:
        """`without`: words that say nothing."""
        listed = [word for word in words_in_order(name) if word not in without]
        words, quantity = set(listed), False
        if not words & SURE_ID_WORDS and not any(word.endswith("id") for word in words):
            last = next((word for word in reversed(listed) if word in ID_WORDS | QUANTITY_WORDS), "")
            quantity = last in QUANTITY_WORDS or len(listed) > 1 and listed[0] in COUNT_WORDS
        is_id = not quantity and (bool(words & ID_WORDS) or any(word.endswith("id") for word in words))
        return cls(is_id, bool(words & TIME_WORDS), bool(words & CLOCK_WORDS), quantity)


def judge_whole(sample: Sample, values: NDArray[Any], column: dict[str, Any]) -> Judged:
    """Judge whole numbers, in the order of the rows, of which `column` has the type."""
    told, distinct = Told.of(sample.name), sample.distinct
    values = values.astype(np.int64) if values.dtype.kind in "iub" and values.dtype != np.uint64 else values.astype(np.float64)
    if _numbers_rows(sample, values):
        return "unused", {}, "it numbers the rows"
    if is_time(sample, told, values):
        return "unused", {}, "a time"
    if time := _calendar_time(sample, values):
        return "unused", {}, time
    if _is_weight(sample):
        return "unused", {}, WEIGHTS_UNUSED
    if all_differ(sample):
        return "unused", {}, "its numbers are all different"
    why = f"{counted_values(distinct)} in the first {sample.rows:,} rows"
    most = FEW_VALUES if told.is_quantity else max(FEW_VALUES, MANY_VALUES_RATIO * len(values))
    if told.is_id or distinct <= most:
        return "sparse", column, why
    return "dense", transform_of(values), f"a quantity: {why}"


def second_kind(sample: Sample, kind: str, column: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return what a column of numbers is besides: a category that is no id by its name is a quantity too, and a quantity whose
    values recur is a category too (measured: docs/measurements.md, "Defaults of files of one's own")."""
    if sample.rows < FEWEST_ROWS or sample.distinct < FEWEST_VALUES:
        return None
    if Told.of(sample.name).is_id or column.keys() & {"separator", "list", "format"}:
        return None
    found = sample.numbers if column.get("type", "") in ("", "integer") else None
    if found is None or found.bad_B.any():
        return None
    if kind == "sparse":
        return "dense", transform_of(found.values_B)
    return ("sparse", {"type": "float"}) if sample.distinct * ROWS_OF_VALUE <= len(sample.values) else None


def judge_large(sample: Sample) -> Judged:
    """Judge whole numbers of which some have more than 64 bits with a sign."""
    if all_differ(sample):
        return "unused", {}, "its numbers are all different"
    why = f"{counted_values(sample.distinct)} in the first {sample.rows:,} rows, some beyond 64 bits with a sign"
    return "sparse", {"type": "whole"}, why


def judge_floats(sample: Sample, values: NDArray[np.float64]) -> Judged:
    """Judge floats, in the order of the rows."""
    told, values = Told.of(sample.name), values[~np.isnan(values)]
    finite = values[np.isfinite(values)]
    if not len(finite) or np.abs(finite).max() > LARGEST:
        return "unused", {}, "numbers beyond 32 bits"
    if len(finite) < len(values):
        return "unused", {}, "some of its numbers are infinite"
    whole = bool((finite == np.floor(finite)).all())
    if whole and _numbers_rows(sample, values):
        return "unused", {}, "it numbers the rows"
    if _is_weight(sample):
        return "unused", {}, WEIGHTS_UNUSED
    if is_time(sample, told, values):
        return "unused", {}, "a time"
    if whole and (time := _calendar_time(sample, finite)):
        return "unused", {}, time
    if whole and np.median(np.abs(finite)) >= FLOAT_DIGITS:
        return _judge_rounded(sample, told)
    if told.is_id and whole and np.abs(finite).max() < FLOAT_DIGITS:
        return "sparse", {"type": "integer"}, "whole numbers, written as floats: they are read as integers"
    if told.is_id and whole:
        return _judge_rounded(sample, told)
    return "dense", transform_of(finite), f"numbers from {finite.min():g} to {finite.max():g}"


def judge_decimals(sample: Sample) -> Judged:
    """Judge decimals: as whole numbers where they have no digits behind the point."""
    import pyarrow as pa

    kind: Any = sample.values.type
    values_B = sample.values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if as_kind(sample.unique, "whole", sample.name)[1].any():
        return judge_floats(sample, values_B)
    if np.abs(values_B).max() >= 2**63:
        return judge_large(sample)
    if kind.scale and not Told.of(sample.name).is_id:
        return judge_floats(sample, np.rint(values_B))
    return judge_whole(sample, as_kind(sample.values, "integer", sample.name)[0].to_numpy(zero_copy_only=False), {})


def judge_lists(sample: Sample) -> Judged:
    """Judge lists: those of ids or texts are categories."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind: Any = sample.values.type
    of, inner, values = pa.types, kind.value_type, sample.values.flatten().drop_null()
    if of.is_nested(inner) or of.is_temporal(inner) or of.is_binary(inner):
        return "unused", {}, f"lists of values of type {inner}: a list must hold ids or texts"
    if not len(values):
        return "unused", {}, f"its lists are empty in the first {sample.rows:,} rows"
    if of.is_uint64(inner) and pc.max(values).as_py() >= 1 << 63:
        return "sparse", {"type": "whole"}, "lists of whole numbers, some beyond 64 bits with a sign"
    if of.is_floating(inner) or of.is_decimal(inner):
        values_N = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        values_N = values_N[~np.isnan(values_N)]
        if not (np.isfinite(values_N).all() and (values_N == np.floor(values_N)).all()):
            return "unused", {}, "lists of numbers that are not whole, such as an embedding: a list must hold ids or texts"
        most = np.abs(values_N).max(initial=0.0)
        if of.is_floating(inner) and most >= FLOAT_DIGITS:
            return "sparse", {"type": "float"}, "lists of ids that were written as floats, which lose digits from 2^53 on"
        if most >= 2**63:
            return "sparse", {"type": "whole"}, "lists of whole numbers, some beyond 64 bits with a sign"
    return "sparse", {}, "lists of categories"


def all_differ(sample: Sample) -> bool:
    """Whether a column is different in each row, in so many that it is no chance; in few of one that is called a key of rows."""
    least = LEAST_KEYS if sample.name.lower() in ROW_NAMES else LEAST_ROWS
    return sample.distinct == len(sample.values) >= least


def counted_values(distinct: int) -> str:
    return f"{distinct:,} value" + "s" * (distinct != 1)


def _judge_rounded(sample: Sample, told: Told) -> Judged:
    """Judge floats beyond 2^53, where each one stands for several whole numbers."""
    lost = "ids that were written as floats, which lose digits from 2^53 on"
    if all_differ(sample):
        return "unused", {}, f"its numbers are all different: {lost}"
    if told.is_id or sample.distinct <= max(FEW_VALUES, MANY_VALUES_RATIO * len(sample.values)):
        return "sparse", {"type": "float"}, f"{lost}: they are compared as floats"
    return "unused", {}, f'{lost}, it seems; type = "float" under sparse takes them'


def _numbers_rows(sample: Sample, values: NDArray[Any]) -> bool:
    if not 1 < len(values) == sample.rows:
        return False
    rise = float(values[-1]) - float(values[0])  # differences of int64 may wrap
    return bool(rise == len(values) - 1 and (np.diff(values) == 1).all())


def _is_weight(sample: Sample) -> bool:
    return sample.name.lower().replace("-", "_").replace(" ", "_") in WEIGHTS


def _calendar_time(sample: Sample, values: NDArray[Any]) -> str:
    """Return why whole numbers are dates such as 20141021; nothing where they are none, or have a name of ids."""
    if Told.of(sample.name, CALENDAR_WORDS).is_id or np.abs(values).max() >= FLOAT_DIGITS:
        return ""
    unit = calendar_unit(values.astype(np.int64))
    return "a time" * (len(unit) > len("yyyymm"))


def is_time(sample: Sample, told: Told, values: NDArray[Any]) -> bool:
    """Whether numbers are times: Unix times, in seconds to nanoseconds, by name or as they rise, numbers such as 20261123 by
    name, or times from another start, of which the name says that they are some."""
    low, high = float(values.min()), float(values.max())
    if told.is_time and low >= 1e7:
        return True
    if told.is_clock and sample.distinct > FEW_VALUES:
        return True
    if len(values) < LEAST_ROWS or not bool((values[1:] >= values[:-1]).all()):
        return False
    if told.is_time and sample.distinct > FEW_VALUES:
        return True
    if told.is_id and not sample.words & CALENDAR_WORDS:
        return False
    return any(SECONDS[0] * unit <= low and high < SECONDS[1] * unit for unit in (1, 1e3, 1e6, 1e9))
