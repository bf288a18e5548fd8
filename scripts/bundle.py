#!/usr/bin/env python3
"""Makes an installed tree run on other systems: copies the libraries it needs into lib/onnx-fsdp, strips, and checks.

    bundle.py TREE [--patchelf PROGRAM] [--wheel]

TREE is a prefix of `cmake --install`, or the part of it in a wheel. The name of a bundled library contains a hash of
its content. So a process can load it next to another build of the same library. The system provides glibc, libgcc_s,
libstdc++, the MPI libraries and pyarrow's libraries. NVIDIA's libraries are opened at run time.
Fails if a file needs a newer system than glibc 2.34 with GCC 11 (RHEL 9, Ubuntu 22.04), or if the tree is too large.
Writes THIRD_PARTY into share/doc/onnx-fsdp, or with --wheel into TREE: the bundled libraries, origins and licences.
"""
import argparse
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11,)}
SYSTEM = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|anl|gcc_s|stdc\+\+|mpi|mpich|arrow|parquet))\.so\.")
ONEDNN = ROOT / "third_party/prefix/local/share/doc/onednn"
CUDNN_FRONTEND = ROOT / "third_party/cudnn_frontend"


def run(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


def needed(file):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", file))


def elf_files(tree):
    files = [file for folder in ("bin", "lib") for file in sorted((tree / folder).rglob("*"))]
    return [file for file in files if file.is_file() and not file.is_symlink() and file.read_bytes()[:4] == b"\x7fELF"]


def libraries_of(libraries):
    """Returns the files that the loader finds for these libraries' dependencies, direct and indirect, by name."""
    names = {}
    for library in libraries:
        found = dict(re.findall(r"^\s*(\S+) => (/\S+)", run("ldd", library), re.M))
        left = needed(library)
        while left:
            name = left.pop()
            if name in names or SYSTEM.match(name):
                continue
            if name not in found:
                sys.exit(f"bundle: {library.name} needs {name}, which is not found")
            names[name] = pathlib.Path(found[name]).resolve()
            left += needed(names[name])
    return dict(sorted(names.items()))


def bundle(tree, patchelf):
    """Copies the libraries and makes every file of the tree use the copies."""
    lib, private = tree / "lib", tree / "lib/onnx-fsdp"
    ours = elf_files(tree)
    names = libraries_of([file for file in ours if file.parent == lib])
    private.mkdir(exist_ok=True)
    runpaths = {private: "$ORIGIN", lib: "$ORIGIN/onnx-fsdp", tree / "bin": "$ORIGIN/../lib"}
    renamed, copies = {}, []
    for name, source in names.items():
        stem, rest = name.split(".so", 1)
        copy = private / f"{stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:8]}.so{rest}"
        renamed[name] = copy.name
        shutil.copy(source, copy)
        copy.chmod(0o755)
        copies.append(copy)
    for file in ours:
        if file.parent == private:  # oneDNN under its own name
            file.unlink()
    for file in copies + [file for file in ours if file.exists()]:
        run("strip", "--strip-unneeded", file)  # before patchelf: strip would damage its files
        words = [word for name in needed(file) if name in renamed for word in ("--replace-needed", name, renamed[name])]
        if file in copies:
            words += ["--set-soname", file.name]
        run(patchelf, *words, "--set-rpath", runpaths[file.parent], file)
    return list(zip(names, names.values(), copies))


def newest_versions(file):
    """Returns the newest version of each kind among the symbols that a file needs."""
    text = run("readelf", "-VW", file)
    text = text[text.find("Version needs"):] if "Version needs" in text else ""
    newest = {}
    for kind, number in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)", text):
        newest[kind] = max(newest.get(kind, ()), tuple(map(int, number.split("."))))
    return newest


def check(tree, limit):
    """Prints the versions that each file needs and returns whether all are within the limits."""
    good, total = True, 0
    for file in elf_files(tree):
        size, newest = file.stat().st_size, newest_versions(file)
        total += size
        late = {kind for kind, version in newest.items() if version > NEWEST[kind]}
        missing = [name for name in needed(file) if not SYSTEM.match(name) and not list(tree.glob(f"lib/**/{name}"))]
        versions = "  ".join(f"{kind} {'.'.join(map(str, version))}" for kind, version in sorted(newest.items()))
        print(f"{size / 1e6:6.1f} MB  {file.name:36} {versions}")
        for kind in late:
            print(f"bundle: {file.name} needs a newer {kind} than {'.'.join(map(str, NEWEST[kind]))}")
        for name in missing:
            print(f"bundle: {file.name} needs {name}, which is not bundled")
        good = good and not late and not missing
    print(f"{total / 1e6:6.1f} MB  in all, of at most {limit} MB")
    return good and total <= limit * 1e6


def package_of(file):
    """Returns a Debian package with its version, and its licence file."""
    for name in (file, str(file).removeprefix("/usr")):
        found = subprocess.run(["dpkg-query", "-S", str(name)], capture_output=True, text=True)
        if found.returncode == 0:
            package = found.stdout.split(": ")[0].split(",")[0]
            version = run("dpkg-query", "-W", "-f", "${Version}", package)
            return f"Debian {package.split(':')[0]} {version}", pathlib.Path(f"/usr/share/doc/{package.split(':')[0]}/copyright")
    return "oneDNN, by the wheel that third_party/requirements.txt names", ONEDNN / "LICENSE"


def inside(tree):
    """Returns rows of THIRD_PARTY for code compiled into our own libraries."""
    apache = ROOT / "LICENSE"  # also the licence of ONNX and cudnn-frontend
    rows = []
    if list(tree.glob("lib/libonnx_fsdp.so*")):
        json = pathlib.Path("/usr/share/doc/nlohmann-json3-dev/copyright")
        rows += [("ONNX, in libonnx_fsdp.so", "third_party/requirements.txt", apache),
                 ("nlohmann/json, in libonnx_fsdp.so", "Debian nlohmann-json3-dev", json),
                 ("parts of oneDNN", "oneDNN", ONEDNN / "THIRD-PARTY-PROGRAMS")]
    if list(tree.glob("lib/libofsdp_cuda.so")):
        rows.append(("CUDA runtime, in libofsdp_cuda.so", "NVIDIA, licence: https://docs.nvidia.com/cuda/eula/", None))
        licences = [*sorted((CUDNN_FRONTEND / "licenses").glob("*")), *CUDNN_FRONTEND.glob("include/**/nlohmann/LICENSE*")]
        rows += [("cudnn-frontend, in libofsdp_cuda.so", "third_party/cudnn_frontend.txt", licence) for licence in licences]
    return rows


def third_party(tree, bundled):
    """Returns the text of THIRD_PARTY."""
    rows = [(copy.name, *package_of(source)) for _, source, copy in bundled] + inside(tree)
    text = ["Libraries in this package that others wrote, as they were built; their licences follow.\n"]
    text += dict.fromkeys(f"  {name:38} {origin}" for name, origin, _ in rows)
    licences = {}
    for name, _, licence in rows:
        if licence:
            licences.setdefault(licence, []).append(name)
    for licence, names in licences.items():
        text += ["", "=" * 100, ", ".join(names), "=" * 100, licence.read_text(errors="replace").strip()]
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tree", type=pathlib.Path)
    parser.add_argument("--patchelf", default="patchelf")
    parser.add_argument("--wheel", action="store_true", help="the package of one")
    parser.add_argument("--limit", type=int, default=150, help="megabytes of programs and libraries")
    arguments = parser.parse_args()
    tree = arguments.tree.resolve()
    bundled = bundle(tree, arguments.patchelf)
    texts = tree if arguments.wheel else tree / "share/doc/onnx-fsdp"
    (texts / "THIRD_PARTY").write_text(third_party(tree, bundled))
    sys.exit(0 if check(tree, arguments.limit) else 1)


if __name__ == "__main__":
    main()
