#!/usr/bin/env python3
"""Writes tests/fixtures/parquet/table.parquet: 100 rows in four row groups, a column of each kind. The tests compute
the values by formula.

    make_parquet.py [FOLDER]      needs pyarrow
"""
import datetime
import decimal
import pathlib
import sys

import pyarrow as pa
import pyarrow.parquet as pq

ROWS, GROUP = 100, 32
NAMES = ["iris", "aster", "rose, red"]


def element(i, j):
    return (i * 7 + j * 3) % 23 / 8 - 1


def columns(rows):
    names = [NAMES[i * i % 3] for i in rows]
    vectors = [[element(i, j) for j in range(4)] for i in rows]
    return {
        "x": pa.array(vectors, pa.list_(pa.float32())),
        "fixed": pa.array(vectors, pa.list_(pa.float32(), 4)),
        **{f"x{j}": pa.array([element(i, j) for i in rows], pa.float64()) for j in range(4)},
        "labels": pa.array([i * i % 3 for i in rows], pa.int64()),
        "count": pa.array([i * 7 % 13 for i in rows], pa.int32()),
        "byte": pa.array([i * 5 % 256 for i in rows], pa.uint8()),
        "flag": pa.array([i % 3 == 0 for i in rows], pa.bool_()),
        "gap": pa.array([None if i % 10 == 9 else i for i in rows], pa.int16()),
        "whole": pa.array([None if i % 10 == 9 else float(i) for i in rows], pa.float64()),
        "nan": pa.array([float("nan") if i == 40 else i / 4 for i in rows], pa.float64()),
        "name": pa.array(names),
        "unsaid": pa.array([None if i % 10 == 9 else name for i, name in enumerate(names)]),
        "category": pa.array(names).dictionary_encode(),
        "digits": pa.array([str(i * i % 3) for i in rows]),
        "ragged": pa.array([list(range(i, i + 1 + i % 3)) for i in rows], pa.list_(pa.int32())),
        "deep": pa.array([[[i + j + k / 4 for k in range(3)] for j in range(2)] for i in rows], pa.list_(pa.list_(pa.float32()))),
        "crooked": pa.array([[[0] * (3 if i == 70 else 2)] * 2 for i in rows], pa.list_(pa.list_(pa.int8()))),
        "hole": pa.array([None if i == 50 else [i, i] for i in rows], pa.list_(pa.int64())),
        "text": pa.array([f"text {i}" for i in rows]),
        "day": pa.array([datetime.date(2024, 1, 1)] * len(rows)),
        "price": pa.array([decimal.Decimal("1.25")] * len(rows)),
        "both": pa.array([{"a": i} for i in rows]),
        "words": pa.array([["a"]] * len(rows)),
    }


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "fixtures/parquet")
    root.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns(range(ROWS)))
    pq.write_table(table, root / "table.parquet", row_group_size=GROUP, compression="zstd", write_page_checksum=True, write_statistics=False)


if __name__ == "__main__":
    main()
