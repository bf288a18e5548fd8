#!/usr/bin/env python3
"""Prints the table of samples/mnist/table.sh from the plans and runs in a folder, and draws two pictures there:

time.svg    milliseconds of an update and peak memory, planned and measured
memory.svg  memory of the first four ranks during one update. Planned: at predicted times. Measured: at the times of a
            trace, with the rank's measured peak as the highest point and the plan's arena bytes as the shape.
"""
import json
import pathlib
import sys

NAMES = {"no_shard": "no_shard (DDP)", "one_unit": "full_shard, one unit", "by_size": "full_shard, units by size",
         "auto": "full_shard, --wrap auto"}
PLANNED = "#9aa8b5"
RANKS = ["#1f5fa8", "#e08a3c", "#3f9c6b", "#7b5ea7"]
WIDTH, LEFT, RIGHT = 900, 200, 90


def text(x, y, anchor, words, size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{words}</text>\n'


def line(points, colour, dashed=False, width=1.5):
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{colour}" stroke-width="{width}"{dash} points="{path}"/>\n'


def bar(x, y, width, colour):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="9" fill="{colour}"/>\n'


def picture(path, height, body):
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">\n'
                    f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n{body}</svg>\n', encoding="utf-8")


class Row:
    def __init__(self, folder, name):
        self.plan = json.loads((folder / f"{name}.plan.json").read_text(encoding="utf-8"))
        self.trace = json.loads((folder / f"{name}.trace.json").read_text(encoding="utf-8"))["traceEvents"]
        end = json.loads((folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        self.units, self.planned_ms, self.ms = len(self.plan["units"]), self.plan["update"]["ms"], end["median_step_ms"]
        self.seconds, self.planned, self.peak = end["seconds"], end["planned_peak_bytes"], end["peak_bytes"]
        self.arena = max(p["arena_bytes"] for p in self.plan["programs"])
        self.program = next(p for p in self.plan["programs"] if p["times_an_update"] and p["last_of_update"])

    def printed(self, name, first):
        others = max(self.peak[1:], default=0)
        same = "to the byte" if self.peak == self.planned else f"no: {self.planned} bytes"
        return (f"{name:27} {self.units:5} {self.seconds:8.2f} {self.ms:12.2f} {self.planned_ms:8.2f} {self.ms / first.ms:7.2f} "
                f"{self.peak[0] / 1e6:12.2f} {others / 1e6:9.2f}  {same}")

    def name_of(self, step):  # as in the trace
        if step["step"] == "Run":
            return step["node"]
        if "unit" in step:
            return f"{step['step']} u{step['unit']} {self.plan['units'][step['unit']]['name']}"
        return step["step"]

    def planned_curve(self):
        """Returns milliseconds and arena bytes for each step."""
        curve = []
        for step in self.program["schedule"]:
            span = step.get("compute") or step.get("communication")
            if span:
                curve.append((span["begin_ms"], span["end_ms"], step["arena_bytes"]))
        return curve

    def measured_curve(self, rank):
        """Returns the same curve at the times of the rank's median update."""
        updates = {}
        whole = []
        for event in self.trace:
            if event["pid"] != rank or event["ph"] != "X":
                continue
            if event["name"].startswith("update "):
                whole.append((event["dur"], event["args"]["update"], event["ts"]))
            updates.setdefault(event["args"]["update"], []).append(event)
        _, update, begin = sorted(whole)[len(whole) // 2]
        events = {}
        for event in sorted(updates[update], key=lambda e: e["ts"]):
            events.setdefault(event["name"], []).append(event)
        curve = []
        for step in self.program["schedule"]:
            found = events.get(self.name_of(step))
            if found:
                event = found.pop(0)
                curve.append(((event["ts"] - begin) / 1e3, (event["ts"] + event["dur"] - begin) / 1e3, step["arena_bytes"]))
        return curve


def bars(rows):
    most_ms = max(max(r.ms, r.planned_ms) for r in rows.values())
    most_bytes = max(max(r.peak) for r in rows.values())
    half = (WIDTH - LEFT - 2 * RIGHT) / 2
    right = LEFT + half + RIGHT
    body = text(LEFT, 24, "start", "ms an update") + text(right, 24, "start", "peak memory of rank 0, MB")
    body += bar(10, 15, 12, RANKS[0]) + text(26, 24, "start", "measured")
    body += bar(94, 15, 12, PLANNED) + text(110, 24, "start", "planned")
    for i, (name, row) in enumerate(rows.items()):
        y = 44 + 40 * i
        body += text(LEFT - 10, y + 14, "end", NAMES[name])
        for at, most, scale, planned, measured in ((LEFT, most_ms, 1, row.planned_ms, row.ms),
                                                   (right, most_bytes, 1e6, row.planned[0], row.peak[0])):
            body += bar(at, y, half * measured / most, RANKS[0]) + bar(at, y + 10, half * planned / most, PLANNED)
            body += text(at + half * max(planned, measured) / most + 6, y + 14, "start", f"{measured / scale:.2f}")
    return 44 + 40 * len(rows), body


def stairs(curve, x, y):
    points, last = [], None
    for begin, end, height in curve:
        if last is not None:
            points.append((x(begin), y(last)))
        points += [(x(begin), y(height)), (x(end), y(height))]
        last = height
    return points


def memory(rows):
    panel, left = 150, 70
    body = ""
    most_bytes = max(max(r.peak) for r in rows.values())
    for i, (name, row) in enumerate(rows.items()):
        bottom = (i + 1) * (panel + 40) - 8
        curves = [row.measured_curve(rank) for rank in range(min(len(row.peak), len(RANKS)))]
        most_ms = max(end for curve in [row.planned_curve(), *curves] for _, end, _ in curve)

        def x(ms, most=most_ms):
            return left + (WIDTH - left - 20) * ms / most

        def y_of(peak, row=row, bottom=bottom):
            return lambda arena: bottom - panel * (peak - row.arena + arena) / most_bytes

        body += text(left, bottom - panel - 8, "start", f"{NAMES[name]}: MB of a rank over {most_ms:.1f} ms; dashed: planned")
        for part in (0, 0.5, 1):
            at = bottom - panel * part
            body += line([(left, at), (WIDTH - 20, at)], "#e3e9ef", width=1)
            body += text(left - 6, at + 4, "end", f"{most_bytes * part / 1e6:.0f}")
        for rank, curve in enumerate(curves):
            body += line(stairs(curve, x, y_of(row.peak[rank])), RANKS[rank])
            body += bar(560 + 80 * rank, bottom - panel - 16, 12, RANKS[rank])
            body += text(576 + 80 * rank, bottom - panel - 8, "start", f"rank {rank}")
        body += line(stairs(row.planned_curve(), x, y_of(row.planned[0])), "#333333", dashed=True, width=1)
    return len(rows) * (panel + 40) + 16, body


def main():
    folder = pathlib.Path(sys.argv[1])
    rows = {name: Row(folder, name) for name in NAMES}
    print(f"{'':27} {'units':>5} {'seconds':>8} {'ms an update':>12} {'planned':>8} {'to DDP':>7} {'MB of rank 0':>12} "
          f"{'of others':>9}  as planned")
    for name, row in rows.items():
        print(row.printed(NAMES[name], rows["no_shard"]))
    for name, (height, body) in (("time", bars(rows)), ("memory", memory(rows))):
        picture(folder / f"{name}.svg", height, body)
        print(f"{folder / name}.svg")


main()
