"""Settings of Sphinx for the documentation site. docs/build.sh passes the root of the repository as the source
folder. So links between files are the same here and in a forge."""
import pathlib
import re

from sphinx import addnodes
from sphinx.environment.adapters.toctree import TocTree

project = "onnx-fsdp"
copyright = "the onnx-fsdp authors"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**.md", "samples/README.md",
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

# Two sidebars: pages for users are below README, pages for readers of the code below docs/internals/README. A page that
# is missing here fails the build, as every warning does.
INTERNALS = "docs/internals/README"
CONTENTS = {
    "README": {
        "Begin": ["docs/start", "docs/howto/install", "docs/coming-from", "docs/troubleshooting", "docs/glossary"],
        "How to": ["docs/howto/huggingface-bert", "docs/howto/gpt-on-text", "docs/howto/resnet-on-images", "docs/howto/csv-and-sklearn",
                   "docs/howto/ocr-new-alphabet", "docs/howto/sound-classifier",
                   "docs/howto/find-a-learning-rate-and-doctor", "docs/howto/resume-and-export", "docs/howto/lora",
                   "docs/howto/quantized", "docs/howto/gpu", "docs/howto/several-hosts", "docs/howto/python-and-c",
                   "docs/howto/plugin", "docs/howto/onnxruntime-artifacts"],
        "Reference": ["docs/reference/options", "docs/reference/data", "docs/reference/losses-and-metrics",
                      "docs/reference/optimizers", "docs/reference/strategies-and-units", "docs/reference/metrics",
                      "docs/reference/checkpoints", "docs/reference/operators", "docs/reference/configuration",
                      "docs/reference/versions"],
        "Samples": ["samples/README", "samples/gpt/README", "samples/bert/README", "samples/halves/README",
                    "samples/library/README", "samples/cluster/README"],
        "Project": [INTERNALS, "CONTRIBUTING", "SECURITY", "CHANGELOG"],
    },
    INTERNALS: {
        "Design": ["docs/internals/first-contribution", "docs/internals/design", "docs/internals/glossary",
                   "docs/internals/parts", "docs/internals/plan", "docs/internals/units", "docs/internals/strategies", "docs/internals/memory",
                   "fsdp/checkpoint/FORMAT"],
        "Models": ["docs/internals/operators", "docs/internals/opsets", "docs/internals/training-graphs",
                   "docs/internals/onnxruntime-artifacts", "docs/internals/quantized", "docs/internals/adapters",
                   "docs/internals/plugins", "docs/internals/images", "docs/internals/addresses", "docs/internals/rows"],
        "Ranks and devices": ["docs/internals/ranks", "docs/internals/launch", "docs/internals/threads", "docs/internals/cuda",
                              "docs/internals/cuda-internals", "docs/internals/cuda-kernels", "docs/internals/devices", "docs/internals/aarch64",
                              "docs/internals/packages", "docs/internals/history"],
        "Figures and proofs": ["docs/internals/trainers-compared", "docs/internals/cuda-figures", "docs/internals/accuracy", "docs/internals/screen",
                               "docs/internals/census", "docs/internals/correctness", "docs/internals/cuda-checks",
                               "bench/README"],
    },
}

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER_LINK = re.compile(r"\[([^][]+)\]\(([^()#:\s]+)\)")


def contents(name):
    parts = []
    for caption, pages in CONTENTS[name].items():
        parts.append("\n".join([f"```{{toctree}}", ":hidden:", f":caption: {caption}", "", *(f"/{page}" for page in pages), "```"]))
    return "\n\n".join(parts)


def folder_links(text, folder):
    """Points a link to a folder at the folder's README, or removes the link if there is none. Forges list the folder
    instead."""
    def page(match):
        target = (folder / match[2]).resolve()
        if not target.is_dir():
            return match[0]
        return f"[{match[1]}]({match[2]}/README.md)" if (target / "README.md").exists() else match[1]
    return FOLDER_LINK.sub(page, text)


def read_source(app, name, source):
    text = folder_links(source[0], (ROOT / name).parent)
    source[0] = f"{text}\n\n{contents(name)}\n" if name in CONTENTS else text


def sidebar(app, page, template, context, doctree):
    """Shows only a page's own sidebar, one level deep; Furo shows all contents on every page."""
    if "furo_navigation_tree" not in context:
        return
    from furo.navigation import get_navigation_tree
    inside = page == INTERNALS or any(page in pages for pages in CONTENTS[INTERNALS].values())
    start = INTERNALS if inside else root_doc
    tree = TocTree(app.env)
    parts = [tree.resolve(page, app.builder, node, prune=False, maxdepth=1, titles_only=True, collapse=False, includehidden=True)
             for node in app.env.get_doctree(start).findall(addnodes.toctree)]
    body = "".join(app.builder.render_partial(part)["fragment"] for part in parts if part is not None)
    if start != root_doc:
        home = app.builder.get_relative_uri(page, root_doc)
        body = f'<ul><li class="toctree-l1"><a class="reference internal" href="{home}">For users</a></li></ul>' + body
    context["furo_navigation_tree"] = get_navigation_tree(body)


def setup(app):
    app.connect("source-read", read_source)
    app.connect("html-page-context", sidebar, priority=900)  # after the theme's
