#!/usr/bin/env bash
# polars 2.1.0: the mean of two columns that hold 100 each is -28, where they are columns of Int8.
#
# Guess before the run: polars widens small integers before it adds them, as sum, list.sum, arr.sum, rolling_sum and cum_sum
# do, so sum_horizontal of 100 and 100 is 200, and mean_horizontal, which gives Float64, is 100. Seen: sum_horizontal stays
# Int8 and wraps to -56, mean_horizontal adds in Int8 too and says -28.0, dot of 100 and 100 with themselves says 32; UInt8
# says 72 for the mean of 200 and 200, and Int16 wraps at 32,767. No error, no null. The mean of the same numbers as a list is
# right.
# What it means: ratings, counters and flags of small types must be cast before they are added over columns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import polars as pl

for dtype, value, total, mean in (
    (pl.Int8, 100, -56, -28.0), (pl.UInt8, 200, 144, 72.0), (pl.Int16, 20_000, -25_536, -12_768.0), (pl.Int64, 100, 200, 100.0)
):
    frame = pl.DataFrame({"day1": [value], "day2": [value]}, schema={"day1": dtype, "day2": dtype})
    found = frame.select(
        added=pl.sum_horizontal("day1", "day2"), mean=pl.mean_horizontal("day1", "day2"),
        listed=pl.concat_list("day1", "day2").list.mean(), summed=pl.concat_list("day1", "day2").list.sum(),
    ).row(0, named=True)
    print(dtype, value, "and", value, found)
    assert found == {"added": total, "mean": mean, "listed": value, "summed": 2 * value}
column = pl.Series([100, 100], dtype=pl.Int8)
print("Int8: sum", column.sum(), "dot", column.dot(column))
assert column.sum() == 200 and column.dot(column) == 20_000 % 256 == 32
PYTHON
