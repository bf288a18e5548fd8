#!/usr/bin/env python3
"""Fills the tables of docs/internals/trainers-compared.md from the figures of bench/figures.json and
docs/operators.txt.

    bench/figures.py           writes the page
    bench/figures.py --check   fails if the page has other tables

A table is between `<!-- table NAME -->` and `<!-- end -->`; the text around it is written by hand.
"""
import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/internals/trainers-compared.md"
MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "".join("| " + " | ".join(cells) + " |\n" for cells in lines) + "\n"


def listed(numbers):
    return ", ".join(f"{n:g}" for n in numbers)


def in_turn(figures):
    rows = []
    for row in figures["rows"]:
        ratios = [ours / theirs for ours, theirs in zip(row["ours"], row["theirs"], strict=True)]
        rows.append([f"{row['model']}, batch {row['batch']}, {row['dtype']}", listed(row["ours"]), listed(row["theirs"]),
                     f"{statistics.median(ratios):.2f}"])
    return f"\n{figures['origin']}; {figures['machine']}; {figures['unit']}.\n" + table(
        ["", "onnx-fsdp", "FSDP2", "median ratio"], rows)


def peers(figures):
    rows = [[row["what"], *("" if ms is None else f"{ms:g}" for ms in row["ms"])] for row in figures["rows"]]
    return f"\n{figures['origin']}; {figures['machine']}; {figures['unit']}.\n" + table(["", *figures["columns"]], rows)


def operators(text):
    rows = [line.split() for line in text.splitlines()[1:]]
    counts = []
    for domain in ("ai.onnx", "com.microsoft"):
        mine = [row for row in rows if row[0] == domain]
        counts.append([domain, str(len(mine)), str(sum(row[4] == "yes" for row in mine))])
    return table(["domain", "operators", "with a gradient"], counts)


def filled(page, tables):
    names = [match[1] for match in MARKED.findall(page)]
    if sorted(names) != sorted(tables):
        raise SystemExit(f"{PAGE.name}: expected the tables {sorted(tables)}, found {sorted(names)}")
    return MARKED.sub(lambda match: match[1] + tables[match[2]] + match[3], page)


def main():
    figures = json.loads((ROOT / "bench/figures.json").read_text(encoding="utf-8"))
    tables = {**{name: in_turn(made) for name, made in figures.items() if name != "peers"}, "peers": peers(figures["peers"]),
              "operators": operators((ROOT / "docs/operators.txt").read_text(encoding="utf-8"))}
    old = PAGE.read_text(encoding="utf-8")
    new = filled(old, tables)
    if sys.argv[1:] == ["--check"]:
        if new != old:
            print(f"{PAGE.relative_to(ROOT)}: its tables are not those of bench/figures.json and docs/operators.txt; run "
                  "bench/figures.py", file=sys.stderr)
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
