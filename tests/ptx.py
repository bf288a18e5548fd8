#!/usr/bin/env python3
"""Fails if one of our CUDA kernels was compiled into slow code that its source does not show:

- it loads 16 bytes at a time and never stores 16, or the reverse (the compiler splits an access into elements);
- its values are in local memory, or ptxas spilled registers;
- its registers or shared memory differ from the table in docs/internals/cuda-kernels.md. The table's caption names its
  version of nvcc, architecture and type. For another nvcc there is no comparison, and one line reports this.

    ptx.py BUILD [--arch sm_80]...   BUILD: build/cuda, its kernels compiled. It reads the files that cmake/keep_ptx.sh
                                     kept there; with --arch it compiles all kernels again, for that architecture
    ptx.py --self-test               expects made-up kernels to be found
"""
import argparse
import collections
import dataclasses
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/internals/cuda-kernels.md"
KEEP = ROOT / "cmake/keep_ptx.sh"
WIDE = 16  # bytes in an access

SIXTEEN_BITS = "(__nv_bfloat16|__half)"
# Kernels that load 16 bytes and store less: name and template arguments, and the reason.
NARROW_STORES = {
    f"join_(chunks|groups)<{SIXTEEN_BITS}, 4>": "sums of four float32 are rounded to 8 bytes, stored at once",
    f"(packs|convert)_kernel<float, {SIXTEEN_BITS}>": "casts of four float32 to 8 bytes, stored at once",
    r"row_kernel<\w+, \w+, (true|false), \d+>": "a reduction stores a number a row",
    r"column_kernel<float, \w+, (true|false), 4>": "a reduction stores a number a column",
    r"delta_kernel<\w+, [48]>": "a sum a query",
}
# Kernels that store 16 bytes and load less, with the reason.
NARROW_LOADS = {
    "dft_(load|turns)": "a complex number of two float64 values is made of numbers apart",
    f"(packs|convert)_kernel<{SIXTEEN_BITS}, float>": "casts of 8 bytes to four float32",
    f"(column_kernel<{SIXTEEN_BITS}, float, (true|false)|chunk_kernel<{SIXTEEN_BITS}), 4>": "8 bytes become sums of four float32",
    "fill_kernel<Sixteen>": "it loads nothing",
    r"where_kernel<unsigned (int|long), \d>": "which of two operands is known an element at a time",
}
# Kernels that spill: the most bytes stored and loaded, and the reason.
SPILLS = {
    "forward_held<float, 4, 32, 32>": (8, "rows of up to 1024 float32 in the registers of a warp, of which ptxas allows 64"),
    r"walk_kernel<\w+, (1|32)>": (16, "TopK of few, which walks a line by a thread or a warp"),
    "join_statistics": (8, "a channel a thread: divisions of doubles are calls, around which a register is kept"),
    "roi_planes": (64, "positions in double of a gradient, a thread a plane"),
    "dft_pass": (16, "divisions of 64-bit integers are calls, around which a register is kept"),
    "det_cofactors": (32, "divisions of doubles are calls, around which registers are kept"),
    "ctc_samples": (80, "logarithms of doubles are calls, around which registers are kept"),
    f"(keys|queries)_kernel<(float|{SIXTEEN_BITS}), (64|128), 8>": (80, "attention on CUDA cores, for what tensor cores do not take"),
}
# Kernels with values in local memory, with the reason.
INDEXED = "its parameters hold an array, and the place in it is computed"
LOCAL_MEMORY = {
    r"chain_kernel<\w+>": "the interpreter of chains, for where NVRTC is missing",
    f"real_kernel<(float|{SIXTEEN_BITS}), \\d, \\(Pointwise\\)\\d+>": "CUDA reduces large arguments of sine and cosine by a table",
    "grid_(places|planes|slopes)": "the pixels of a place along each axis, some of which may be left out",
    "roi_(bins|planes)": "the pixels of a sample, some of which may be left out",
    "indices_kernel": INDEXED,
    "split_kernel": INDEXED,
    "tuple_kernel": INDEXED,
}


@dataclasses.dataclass
class Kernel:
    name: str  # demangled
    arch: str
    loads: int = 0  # with 16 bytes
    stores: int = 0
    local: bool = False
    registers: int = 0
    shared: int = 0
    spilled: int = 0  # bytes

    @property
    def short(self):
        return short_name(self.name)


# --- PTX ---

_ENTRY = re.compile(r"^(?:\.visible |\.weak )?\.entry (\w+)\(", re.MULTILINE)
_ACCESS = re.compile(r"\b(ld|st)\.((?:\w+\.|\w+::\w+\.)*)global\.((?:[\w:]+\.)*)([bfsu])(\d+)\b")
_SINES = "__cudart_sin_cos_coeffs"  # CUDA's own table; sine and cosine of float64 read it in pairs


def ptx_kernels(text):
    """Yields (mangled name, wide loads, wide stores, whether it names local memory) for each entry."""
    entries = list(_ENTRY.finditer(text))
    for entry in entries:
        end = text.find("\n}", entry.end())
        body = text[entry.end():end]
        wide = collections.Counter()
        for way, before, behind, kind, bits in _ACCESS.findall(body):
            if _SINES in body and (way, behind, kind + bits) == ("ld", "nc.v2.", "f64"):
                continue
            lanes = re.search(r"\bv(\d)\b", before + behind)
            if int(bits) // 8 * (int(lanes[1]) if lanes else 1) >= WIDE:
                wide[way] += 1
        yield entry[1], wide["ld"], wide["st"], ".local" in body


# --- the output of ptxas ---

_COMPILING = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")


def usage(text):
    """Returns {(mangled name, architecture): (registers, bytes of shared memory, bytes spilled)}."""
    found, entry, spilled = {}, None, 0
    for line in text.splitlines():
        if match := _COMPILING.search(line):
            entry, spilled = (match[1], match[2]), 0
        elif match := _SPILLS.search(line):
            spilled = int(match[1]) + int(match[2])
        elif (match := _USED.search(line)) and entry:
            found[entry] = (int(match[1]), int(match[2] or 0), spilled)
            entry = None
    return found


# --- names ---


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), text=True, stdout=subprocess.PIPE, check=True)
    return dict(zip(names, done.stdout.splitlines()))


def short_name(name):
    """Returns `backward_rows<__nv_bfloat16, 256>` for a demangled kernel."""
    name = re.sub(r"_GLOBAL__N__\w+::|\(anonymous namespace\)::|ofsdp::kernels::cuda::|ofsdp::kernels::", "", name)
    name = re.sub(r"^void ", "", name)
    depth = 0
    for at, sign in enumerate(name):
        depth += (sign == "<") - (sign == ">")
        if sign == "(" and depth == 0 and at > 0:
            return name[:at]
    return name


def plain_name(kernel):
    return kernel.short.split("<")[0]


# --- a build ---


def read(folder):
    """Returns our kernels from the files that keep_ptx.sh kept below a folder."""
    entries, used = {}, {}
    for file in sorted(folder.rglob("*.o.usage")):
        used |= usage(file.read_text(encoding="utf-8", errors="replace"))
    for file in sorted(folder.rglob("*.ptx")):
        if file.parent.suffix != ".ptx":
            continue
        text = file.read_text(encoding="utf-8")
        arch = "sm_" + re.search(r"^\.target sm_(\w+)", text, re.MULTILINE)[1]
        for name, *rest in ptx_kernels(text):
            entries[name, arch] = rest
    names = demangled(sorted({name for name, _ in entries}))
    kernels = []
    for (name, arch), (loads, stores, local) in sorted(entries.items()):
        if "ofsdp::kernels::cuda::" not in names[name].split("(", 1)[0] or names[name].startswith("void cub::"):
            continue  # CUB's own
        registers, shared, spilled = used.get((name, arch), (0, 0, 0))
        kernels.append(Kernel(names[name], arch, loads, stores, local, registers, shared, spilled))
    return kernels


def compile_for(build, arch, folder):
    """Compiles every kernel of the build again, for another architecture."""
    number = arch.removeprefix("sm_")
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    wanted = [c for c in commands if "ofsdp_cuda_kernels.dir" in c["command"] and c["file"].endswith(".cu")]
    for i, command in enumerate(wanted):
        words = [w for w in shlex.split(command["command"]) if not w.startswith("--generate-code=")]
        words[words.index("-o") + 1] = str(folder / f"{i}.o")
        at = next(k for k, word in enumerate(words) if pathlib.Path(word).name == "nvcc")
        words = [str(KEEP), *words[at:], f"--generate-code=arch=compute_{number},code=[sm_{number}]"]
        subprocess.run(words, cwd=command["directory"], check=True)


def compiler_of(build):
    """Returns the version of the build's nvcc, such as `13.0`."""
    text = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    nvcc = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.+)$", text, re.MULTILINE)
    said = subprocess.run([nvcc[1] if nvcc else "nvcc", "--version"], text=True, stdout=subprocess.PIPE, check=True).stdout
    return re.search(r"release ([\d.]+)", said)[1]


# --- rules ---


def is_in(exceptions, kernel):
    return any(re.fullmatch(pattern, kernel.short) for pattern in exceptions)


def slow(kernels):
    found = []
    for k in kernels:
        if k.loads and not k.stores and not is_in(NARROW_STORES, k):
            found.append(f"{k.short} ({k.arch}): {k.loads} loads of 16 bytes and no store of 16")
        if k.stores and not k.loads and not is_in(NARROW_LOADS, k):
            found.append(f"{k.short} ({k.arch}): {k.stores} stores of 16 bytes and no load of 16")
        if k.spilled > max((most for pattern, (most, _) in SPILLS.items() if is_in([pattern], k)), default=0):
            found.append(f"{k.short} ({k.arch}): {k.spilled} bytes of registers are stored and loaded by spills")
        if k.local and not is_in(LOCAL_MEMORY, k):
            found.append(f"{k.short} ({k.arch}): values in local memory")
        if not k.registers:
            found.append(f"{k.short} ({k.arch}): no registers were noted")
    return found


def stale(kernels):
    """Returns exceptions that no kernel needs: the lists only shrink."""
    narrow, local = [k for k in kernels if k.loads and not k.stores], [k for k in kernels if k.local]
    loads, spilled = [k for k in kernels if k.stores and not k.loads], [k for k in kernels if k.spilled]
    return [f"an exception of tests/ptx.py is needed no more: {pattern}"
            for exceptions, needing in ((NARROW_STORES, narrow), (NARROW_LOADS, loads), (LOCAL_MEMORY, local), (SPILLS, spilled))
            for pattern in exceptions if not any(is_in([pattern], k) for k in needing)]


# --- the table of docs/internals/cuda-kernels.md ---

COLUMNS = {"forward": "forward_kernel", "`log_sum` and `delta` found": "stats_kernel", "dq": "queries_kernel", "dk, dv": "keys_kernel"}
TYPES = {"bfloat16": "__nv_bfloat16", "float16": "__half"}
_CAPTION = re.compile(r"Registers a thread and bytes of shared memory a block of (\d+) threads \(nvcc ([\d.]+), (sm_\w+), (\w+);")
REGISTERS, SHARED, RESERVED, UNIT = 65536, 227 * 1024, 1024, 8  # per multiprocessor; per block; registers come by 8


def blocks_held(registers, shared, threads):
    by_registers = REGISTERS // (-(-max(registers, 1) // UNIT) * UNIT * threads)
    return min(by_registers, SHARED // (shared + RESERVED))


def table_rows(text):
    """Returns the caption (threads, nvcc, architecture, type) and for each row the width and its line."""
    caption = _CAPTION.search(text)
    if not caption:
        return None, []
    lines = text[caption.end():].splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("| W |"))
    rows = []
    for line in lines[begin + 2:]:
        if not line.startswith("|"):
            break
        rows.append((int(line.split("|")[1]), line))
    return caption.groups(), rows


def expected_row(width, kernels, threads):
    """Returns the line for a width's compiled kernels; None without them."""
    cells = []
    for name in COLUMNS.values():
        found = [k for k in kernels if plain_name(k) == name and "TensorOperands" in k.name and
                 re.search(rf", {width}\b", k.short)]
        if len(found) != 1:
            return None
        k = found[0]
        cells.append(f"{k.registers}, {k.shared // 1024} KiB: {blocks_held(k.registers, k.shared, threads)}")
    return f"| {width} | {' | '.join(cells)} |"


def differences(text, kernels, nvcc):
    """Returns (lines to write, a remark or None)."""
    caption, rows = table_rows(text)
    if caption is None or not rows:
        return [f"{TABLE.name}: no table of registers under its caption"], None
    threads, version, arch, dtype = caption
    if version != nvcc:
        return [], f"registers are not compared: the table is of nvcc {version}, this is {nvcc}"
    if all(k.arch != arch for k in kernels):
        return [], f"registers are not compared: the table is of {arch}"
    mine = [k for k in kernels if k.arch == arch and f"<{TYPES[dtype]}" in k.short]
    found = []
    for width, line in rows:
        made = expected_row(width, mine, int(threads))
        if made is None:
            found.append(f"{TABLE.name}: no compiled kernels for the row {line}")
        elif made != line:
            found.append(f"{TABLE.name}: the row\n  {line}\nis now\n  {made}")
    return found, None


# --- self-test ---

PTX = """.target sm_90
.visible .entry {name}(
	.param .u64 {name}_param_0
)
{{
	{body}
	ret;
}}
"""
USAGE = """ptxas info    : Compiling entry function '{name}' for 'sm_90'
ptxas info    : Function properties for {name}
    {stack} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers{shared}, 384 bytes cmem[0]
"""
SPACE = "_ZN5ofsdp7kernels4cuda39_GLOBAL__N__d91bcfdf_7_loss_cu_a7bb1d33"
GOOD = "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];\n\tst.global.wb.v4.u32 [%rd2], {%r1, %r2, %r3, %r4};"
SAMPLES = [  # body, spilled bytes, findings
    (GOOD, 0, 0),
    ("ld.global.nc.v2.f64 {%fd1, %fd2}, [%rd1];\n\tst.global.v2.u64 [%rd2], {%rd3, %rd4};", 0, 0),
    ("ld.global.f32 %f1, [%rd1];\n\tst.global.f32 [%rd2], %f1;", 0, 0),
    ("ld.global.v2.u16 {%rs1, %rs2}, [%rd1];\n\tst.global.v2.u16 [%rd2], {%rs1, %rs2};", 0, 0),
    ("ld.global.L1::no_allocate.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];\n\tst.global.f32 [%rd2], %f1;", 0, 1),
    ("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];\n\tst.global.u16 [%rd2], %rs1;\n\tst.global.v2.u16 [%rd2+2], {%rs1, %rs2};", 0, 1),
    ("ld.global.u32 %r1, [%rd1];\n\tst.global.v4.u32 [%rd2], {%r1, %r2, %r3, %r4};", 0, 1),
    ("mov.u64 %rd3, __cudart_sin_cos_coeffs;\n\tld.global.nc.v2.f64 {%fd1, %fd2}, [%rd3];\n\tst.global.f32 [%rd2], %f1;", 0, 0),
    (GOOD, 8, 1),
    (".local .align 8 .b8 \t__local_depot0[112];\n\tst.local.u64 [%rd1], %rd63;", 0, 1),
    ("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];\n\tst.global.u16 [%rd2], %rs1;", 16, 2),
]


def planted(folder, samples):
    for i, (body, spilled, _) in enumerate(samples):
        name = f"{SPACE}7kernel{i}Ev"
        kept = folder / f"{i}.cu.o.ptx"
        kept.mkdir()
        (kept / "planted.ptx").write_text(PTX.format(name=name, body=body), encoding="utf-8")
        (folder / f"{i}.cu.o.usage").write_text(
            USAGE.format(name=name, stack=spilled, spill=spilled, registers=40, shared=""), encoding="utf-8")


def attention_kernels(registers):
    made = []
    for name in COLUMNS.values():
        third = ", 2" if name == "forward_kernel" else ""
        made.append(Kernel(f"void ofsdp::kernels::cuda::{name}<__nv_bfloat16, 64{third}>(AttentionParams, TensorOperands<__nv_bfloat16>)",
                           "sm_90", registers=registers, shared=32768))
    return made


def self_test():
    failures = []

    def expect(what, found, wanted):
        if found != wanted:
            failures.append(f"{what}: {found}, expected {wanted}")

    for sample in SAMPLES:
        with tempfile.TemporaryDirectory() as name:
            planted(pathlib.Path(name), [sample])
            kernels = read(pathlib.Path(name))
            expect(f"kernels of {sample}", len(kernels), 1)
            expect(f"findings of {sample}", len(slow(kernels)), sample[2])
    text = ("Registers a thread and bytes of shared memory a block of 128 threads (nvcc 13.0, sm_90, bfloat16; none\n\n"
            "| W | forward |\n| --- | --- |\n| 64 | 176, 32 KiB: 2 | 176, 32 KiB: 2 | 176, 32 KiB: 2 | 176, 32 KiB: 2 |\n")
    expect("an equal table", differences(text, attention_kernels(176), "13.0"), ([], None))
    expect("another table", len(differences(text, attention_kernels(184), "13.0")[0]), 1)
    expect("a row without kernels", len(differences(text, attention_kernels(176)[:2], "13.0")[0]), 1)
    expect("no table", len(differences("", attention_kernels(176), "13.0")[0]), 1)
    expect("another nvcc", differences(text, attention_kernels(184), "12.8")[0], [])
    expect("blocks by registers and by shared memory", (blocks_held(164, 16384, 128), blocks_held(80, 36864, 128)), (3, 6))
    caption, rows = table_rows(TABLE.read_text(encoding="utf-8"))
    expect("the table in the documentation", (caption is not None, len(rows)), (True, 4))
    for failure in failures:
        print(f"self-test: {failure}", file=sys.stderr)
    print(f"ptx self-test: {len(SAMPLES)} kernels, {len(failures)} failures")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    parser = argparse.ArgumentParser(prog="ptx.py")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--arch", action="append", default=[])
    a = parser.parse_args()
    if a.arch:
        kernels = []
        for arch in a.arch:
            with tempfile.TemporaryDirectory() as name:
                compile_for(a.build, arch, pathlib.Path(name))
                kernels += read(pathlib.Path(name))
    else:
        kernels = read(a.build / "kernels/cuda")
    if not kernels:
        print(f"{a.build}: no compiled kernels; build ofsdp_cuda_kernels first", file=sys.stderr)
        return 1
    wrong, remark = differences(TABLE.read_text(encoding="utf-8"), kernels, compiler_of(a.build))
    found = slow(kernels) + wrong + ([] if a.arch else stale(kernels))
    for line in found:
        print(line, file=sys.stderr)
    archs = ", ".join(sorted({k.arch for k in kernels}))
    print(f"{len(kernels)} kernels for {archs}: {len(found)} findings" + (f"; {remark}" if remark else ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
