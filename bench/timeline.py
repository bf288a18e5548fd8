#!/usr/bin/env python3
"""Models the timeline of an update on many GPUs, and its exposed communication.

    fsdp-run plan MODEL.onnx ... --device cuda --world 64 --json >plan.json
    bench/timeline.py plan.json...      one line per plan; needs no GPU and no other library

A plan has for each step the stream, the events to wait for and to record, the operands, and the bytes moved. The model
runs compute steps one after the other. A step takes the longer of its FLOP over --tflops (products, attention) and its
bytes over --memory. Steps of the communication stream run one after the other; a step that forks from the compute
stream begins at its fork or later. A collective of n ranks takes bytes (n - 1) / n / bandwidth, and a latency for each
hop of a ring. The bandwidth is NVLink's inside a host, else the network's. An update takes its bytes over --memory.
Nothing contends, so collectives do not slow products down.

`FSDP2's units` has the same nodes in other units: the blocks, the part before them and the part after them. A gather is
issued when the unit before begins. A reduction is issued when the gradients of its unit are done. One link runs them in
the order of issue; updates cost nothing.

Exposed: the end minus the compute steps.
"""
import argparse
import collections
import json
import math
import pathlib
import re

WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
PRODUCTS = {"Gemm", "MatMul", "ofsdp.MatMul", "ofsdp.GemmEpilogue", "ofsdp.KeptRowsGemm"}
HEAD = "ofsdp.LinearCrossEntropy"


def shape_of(text):
    return [int(n) for n in re.findall(r"\d+", text.partition("[")[2])]


class Machine:
    def __init__(self, a, plan):
        self.a = a
        self.world = plan["world"]
        self.plan = plan
        self.types = plan["dtypes"]

    def compute(self, step):
        flop = 0.0
        if step["op"] in PRODUCTS:
            x, w, y = (math.prod(shape_of(t)) for t in (step["inputs"][0], step["inputs"][1], step["outputs"][0]))
            flop = 2 * math.sqrt(x * w * y)
        elif step["op"] == HEAD:
            x, w = shape_of(step["inputs"][1]), shape_of(step["inputs"][2])
            flop = 3 * 2 * x[0] * math.prod(w)
        elif "Attention" in step["op"]:
            grad = step["op"].endswith("Grad")
            q = shape_of(step["inputs"][0 if not grad else 1])
            flop = (5 if grad else 2) * math.prod(q) * q[-2]  # causal
        moved = (step["read_bytes"] + step["written_bytes"]) / self.a.memory / 1e9
        return max(flop / self.a.tflops / 1e12, moved)

    def collective(self, bytes_):
        hosts = max(1, self.world // self.a.per_host)
        bandwidth = self.a.network if hosts > 1 else self.a.nvlink
        hops = (hosts - 1) * self.a.host_hop + (self.world - hosts) * self.a.hop
        return bytes_ * (self.world - 1) / self.world / bandwidth / 1e9 + hops * 1e-6

    def gather(self, numel):
        return self.collective(numel * WIDTHS[self.types["param"]])

    def reduce(self, numel):
        return self.collective(numel * WIDTHS[self.types["reduce"]])

    def update(self, numel):
        return numel / self.world * 26 / self.a.memory / 1e9


def ours(m, steps, units):
    """Returns the end, and the seconds of compute steps and of collectives."""
    clock = {"compute": 0.0, "communication": 0.0}
    reached = collections.defaultdict(float)
    compute = communication = 0.0
    for step in steps:
        stream = step.get("stream")
        if stream not in clock:
            continue
        begin = clock[stream]
        if "forks" in step:
            begin = max(begin, clock["compute"])
        begin = max([begin, *(reached[e] for e in step.get("waits", []))])
        took = 0.0
        if step["step"] == "Run":
            took = m.compute(step)
            compute += took
        elif step["step"] in ("Accumulate", "Carry"):
            took = (step["read_bytes"] + step["written_bytes"]) / m.a.memory / 1e9
            compute += took
        elif "unit" in step and stream == "communication":
            numel = units[step["unit"]]
            took = m.gather(numel) if step["step"] == "Gather" else m.reduce(numel)
            communication += took
            if step["step"] == "ReduceUpdate":
                took += m.update(numel)
        clock[stream] = begin + took
        if "event" in step:
            reached[step["event"]] = clock[stream]
    return max(clock.values()), compute, communication


def stretches(m, steps, blocks):
    """Returns the units in forward order, and each unit's seconds of forward and of backward nodes."""
    name = re.compile("(" + "|".join(re.escape(re.sub(r"\W", "_", b)) + "(?![0-9])" for b in blocks) + ")") if blocks else None
    order, times, unit = ["before"], collections.defaultdict(lambda: [0.0, 0.0]), "before"
    for step in steps:
        if step["step"] != "Run":
            continue
        found = name.search(re.sub(r"\W", "_", step["node"])) if name else None
        if found:
            unit = found.group(1)
        elif not step["backward"]:
            unit = "after" if len(order) > len(blocks) else "before"
        elif unit == order[1]:
            unit = "before"  # the time left by the first block's gradients
        if unit not in order:
            order.append(unit)
        times[unit][step["backward"]] += m.compute(step)
    return order, times


def of_fsdp2(m, steps, plan):
    blocks = [u for u in plan["units"] if u["name"] not in ("root", "before blocks", "after blocks")]
    rest = sum(u["numel"] for u in plan["units"]) - sum(u["numel"] for u in blocks)
    order, times = stretches(m, steps, [u["name"] for u in blocks])
    numels = {re.sub(r"\W", "_", u["name"]): u["numel"] for u in blocks}
    numels["before"] = numels["after"] = rest / 2
    passes = [(u, 0) for u in order] + [(u, 1) for u in reversed(order)]
    link = clock = 0.0
    ready = {}
    for i, (unit, backward) in enumerate(passes):
        if i == 0:
            link = ready[0] = m.gather(numels[unit])
        clock = max(clock, ready.get(i, 0.0))
        following = i + 1
        if following < len(passes):
            again = passes[following][0] == unit or passes[following][0] == "before" and passes[following][1]
            if not again:
                link = max(link, clock) + m.gather(numels[passes[following][0]])
                ready[following] = link
        clock += times[unit][backward]
        if backward:
            link = max(link, clock) + m.reduce(numels[unit])
    return max(clock, link)


def line(a, path):
    plan = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    m = Machine(a, plan)
    program = next(p for p in plan["programs"] if p["training"] and p["times_an_update"])
    units = [u["padded_numel"] for u in plan["units"]]
    end, compute, communication = ours(m, program["schedule"], units)
    theirs = of_fsdp2(m, program["schedule"], plan)
    return (f"{path}: {plan['world']} GPUs: update {1e3 * end:.1f} ms, of it nodes {1e3 * compute:.1f} ms, exposed "
            f"{1e3 * (end - compute):.1f} ms of {1e3 * communication:.1f} ms; FSDP2's units: exposed {1e3 * (theirs - compute):.1f} ms")


def main():
    p = argparse.ArgumentParser(prog="timeline.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("plans", nargs="+")
    p.add_argument("--tflops", type=float, default=600, help="of products and attention")
    p.add_argument("--memory", type=float, default=3500, help="GB/s")
    p.add_argument("--nvlink", type=float, default=370, help="GB/s a GPU inside a host")
    p.add_argument("--network", type=float, default=48, help="GB/s a GPU between hosts")
    p.add_argument("--per-host", type=int, default=8, help="GPUs")
    p.add_argument("--hop", type=float, default=3.4, help="us a hop inside a host")
    p.add_argument("--host-hop", type=float, default=14, help="us a hop between hosts")
    a = p.parse_args()
    for path in a.plans:
        print(line(a, path))


if __name__ == "__main__":
    main()
