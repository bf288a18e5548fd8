"""Settings of Sphinx for the documentation site. docs/build.sh calls it with the root of the repository as the source
folder, so that links between files are the same here and in a forge."""
import pathlib
import re

project = "onnx-fsdp"
copyright = "the onnx-fsdp authors"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "samples/README.md",
                    "samples/*/README.md", "fsdp/checkpoint/FORMAT.md", "bench/README.md"]
exclude_patterns = ["build", "third_party", ".git", "docs/README.md"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
highlight_language = "text"
html_theme = "furo"
html_title = "onnx-fsdp"
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"

# The sidebar. A page that stands nowhere here fails the build, as every warning does.
CONTENTS = {
    "Use": ["docs/install", "docs/training", "docs/losses", "docs/screen", "docs/doctor", "docs/correctness",
            "docs/metrics", "docs/configuration", "docs/strategies", "docs/units", "docs/plan",
            "docs/adapters", "docs/checkpoints", "docs/launch", "docs/library", "docs/cuda"],
    "Coming from": ["docs/from-pytorch-fsdp", "docs/from-accelerate", "docs/from-deepspeed",
                    "docs/from-onnxruntime-training", "docs/trainers-compared"],
    "Models": ["docs/operators", "docs/opsets", "docs/plugins", "docs/quantized", "docs/training-graphs"],
    "Samples": ["samples/README", "samples/gpt/README", "samples/bert/README", "samples/halves/README", "samples/library/README",
                "samples/cluster/README"],
    "Internals": ["docs/design", "docs/glossary", "docs/ranks", "fsdp/checkpoint/FORMAT", "docs/cuda-internals", "docs/cuda-kernels",
                  "docs/cuda-checks", "docs/cuda-figures", "docs/aarch64", "docs/threads", "docs/accuracy", "docs/census", "bench/README"],
    "Project": ["CONTRIBUTING", "SECURITY", "CHANGELOG"],
}

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER_LINK = re.compile(r"\[([^][]+)\]\(([^()#:\s]+)\)")


def contents():
    parts = []
    for caption, pages in CONTENTS.items():
        parts.append("\n".join([f"```{{toctree}}", ":hidden:", f":caption: {caption}", "", *pages, "```"]))
    return "\n\n".join(parts)


def folder_links(text, folder):
    """A link to a folder leads to its README, or is none where it has none: forges list the folder."""
    def page(match):
        target = (folder / match[2]).resolve()
        if not target.is_dir():
            return match[0]
        return f"[{match[1]}]({match[2]}/README.md)" if (target / "README.md").exists() else match[1]
    return FOLDER_LINK.sub(page, text)


def read_source(app, name, source):
    text = folder_links(source[0], (ROOT / name).parent)
    source[0] = f"{text}\n\n{contents()}\n" if name == root_doc else text


def setup(app):
    app.connect("source-read", read_source)
