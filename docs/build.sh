#!/usr/bin/env bash
# Builds the documentation site from the repository's Markdown: build/site/index.html. A browser opens it without a
# server or a network, with search. A dead link, or a page that is missing from the contents, fails the build.
#
#   docs/build.sh [FOLDER]      default: build/site
#
# Installs Sphinx from PyPI once into build/docs, pinned by docs/site/requirements.txt. Exit status 77, which CTest
# shows as skipped, if Sphinx is unavailable.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
site=${1:-build/site}
store=build/docs
python=/usr/bin/python3

install() {
  mkdir -p "$store"
  exec 9>"$store/.lock"
  flock 9 # presets tested at the same time install once
  local want
  want=$(sha256sum <docs/site/requirements.txt)
  [ "$(cat "$store/.stamp" 2>/dev/null)" = "$want" ] && return
  rm -rf "$store/python"
  "$python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
    --target "$store/python" -r docs/site/requirements.txt >"$store/pip.log" 2>&1 ||
    { echo "docs/build.sh: Sphinx cannot be installed: $(tail -n 1 "$store/pip.log")" >&2; exit 77; }
  echo "$want" >"$store/.stamp"
}

install
export PYTHONPATH=$store/python PYTHONDONTWRITEBYTECODE=1
"$python" -m sphinx -q -W --keep-going -j auto -E -d "$store/doctrees" -c docs/site -b html . "$site"
cp "$site/README.html" "$site/index.html"

# The search must find a page for a first user's words. As in the search script, every stemmed word must be on the page.
"$python" - "$site/searchindex.js" hugging face fine tune <<'END'
import json, sys
from snowballstemmer import stemmer
text = open(sys.argv[1], encoding="utf-8").read()
index = json.loads(text[text.index("{"):text.rindex("}") + 1])
as_list = lambda pages: pages if isinstance(pages, list) else [pages]
found = set(range(len(index["docnames"])))
for word in stemmer("porter").stemWords(sys.argv[2:]):
    found &= {page for part in ("terms", "titleterms") for page in as_list(index[part].get(word, []))}
if "docs/howto/huggingface-bert" not in {index["docnames"][page] for page in found}:
    sys.exit(f"docs/build.sh: the search for '{' '.join(sys.argv[2:])}' does not find docs/howto/huggingface-bert")
END
echo "wrote $site/index.html"
