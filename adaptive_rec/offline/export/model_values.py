"""Values of columns as an exported model reads them: numbers, and the values of a field. Part of its ``model.py``."""

import ast
import json
import re
import sys
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from uuid import UUID

import numpy as np

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
    """Return a time in seconds since 1970, UTC, of a number in the column's unit, a text in its pattern or in ISO, or a date."""
    value = value.strip() if isinstance(value, str) else value
    if value is None or value != value or (isinstance(value, str) and value in WORDS):
        return None
    if "%" in unit and not hasattr(value, "timetuple"):
        value, unit = datetime.strptime(str(value), unit), ""
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
