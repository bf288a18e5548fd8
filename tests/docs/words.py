#!/usr/bin/env python3
"""Limits the size and the English of the user documents: README.md, samples/README.md and docs/ without docs/internals.

    words.py [ROOT]       one line for each finding
    words.py --count      the words of each page, as wc counts them
    words.py --self-test  expects made-up pages to be found
"""
import pathlib
import re
import sys
import tempfile

import blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_WORDS = 20000  # on all pages together
MAX_SENTENCE = 25  # words
MAX_COLUMNS = 120
GENERATED = "docs/reference/options.md"  # the program's tables set the length of its lines
# At most one in 1,000 words on a page, and on all pages together: each hides the subject of a sentence.
RARE = {word: re.compile(rf"\b{word}\b", re.IGNORECASE)
        for word in ("what", "whose", "those", "stands", "said", "no further", "alone")}
RARE["So, at a sentence's head"] = re.compile(r"^So\b")

CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*\[]*[A-Z0-9])")
WORD = re.compile(r"[A-Za-z0-9]")


def pages(root):
    found = [root / "README.md", root / "samples/README.md"]
    found += [page for page in sorted((root / "docs").rglob("*.md")) if "internals" not in page.parts]
    return [page for page in found if page.exists()]


def paragraphs(path, text):
    """Returns (line, text) for each paragraph, list item and table cell. Code counts as one word, a link as its
    label."""
    code = set()
    for block in blocks.blocks_of(path, text):
        code.update(range(block.line, block.line + len(block.lines)))
    parts, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        if fenced or line.startswith("```") or number in code or not line.strip() or line.startswith("<!--"):
            parts.append(None)
            continue
        line = LINK.sub(r"\1", CODE.sub("Code", line))
        if line.startswith("#"):
            parts += [(number, line.lstrip("# ")), None]
        elif line.lstrip().startswith("|"):
            parts += [part for cell in line.strip().strip("|").split("|") for part in ((number, cell.strip()), None)]
        elif ITEM.match(line) or parts and parts[-1] is None or not parts:
            parts.append((number, ITEM.sub("", line).strip()))
        else:
            parts[-1] = (parts[-1][0], parts[-1][1] + " " + line.strip())
    return [part for part in parts if part and WORD.search(part[1])]


def sentences(path, text):
    return [(number, sentence) for number, part in paragraphs(path, text) for sentence in SENTENCE_END.split(part)]


def length(sentence):
    return sum(1 for word in sentence.split() if WORD.search(word))


def page_findings(path, text):
    """Returns a page's findings, its number of words, and the count of each rare word."""
    found, counts = [], dict.fromkeys(RARE, 0)
    words = len(text.split())
    for number, sentence in sentences(path, text):
        if length(sentence) > MAX_SENTENCE:
            found.append(f"{path}:{number}: a sentence of {length(sentence)} words, expected {MAX_SENTENCE} at most: "
                         f"{sentence[:60]}")
        for word, pattern in RARE.items():
            counts[word] += len(pattern.findall(sentence))
    for word, count in counts.items():
        if count > max(1, words // 1000):
            found.append(f"{path}: '{word}' {count} times in {words} words, expected one in 1,000 at most")
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_COLUMNS and path != GENERATED:
            found.append(f"{path}:{number}: {len(line)} columns, expected {MAX_COLUMNS} at most")
    if path.startswith("docs/howto/"):
        if not any(block.is_shell() for block in blocks.blocks_of(path, text)):
            found.append(f"{path}: expected a block of commands, found none")
        if not re.search(r"^## If it fails$", text, re.MULTILINE):
            found.append(f"{path}: expected a part 'If it fails', found none")
    return found, words, counts


def check(root):
    found, total, counts = [], 0, dict.fromkeys(RARE, 0)
    for page in pages(root):
        wrong, words, rare = page_findings(page.relative_to(root).as_posix(), page.read_text(encoding="utf-8"))
        found += wrong
        total += words
        counts = {word: counts[word] + rare[word] for word in counts}
    if total > MAX_WORDS:
        found.append(f"the documents for users have {total} words, expected {MAX_WORDS} at most (words.py --count)")
    found += [f"all pages: '{word}' {count} times in {total} words, expected one in 1,000 at most"
              for word, count in counts.items() if count > max(1, total // 1000)]
    return found


def self_test():
    command, fails = "\n\n    fsdp-run model.onnx\n", "\n## If it fails\n"
    long_one = " ".join(["w"] * 26) + "."
    trials = [  # (page, text, findings)
        ("docs/start.md", "One. " + "Two three.\n" * 20, 0), ("docs/start.md", "A b " + long_one, 1),
        ("docs/start.md", "- " + long_one, 1), ("docs/start.md", "| a | " + long_one + " |", 1),
        ("docs/start.md", "| " + "word. Word | " * 20 + " |", 1),  # columns alone
        ("docs/start.md", "A.\n\n    " + "word " * 20 + "\n\nB.", 0), ("docs/start.md", "`" + "word " * 20 + "` is one.", 0),
        ("docs/start.md", "He knows what. One is enough.", 0), ("docs/start.md", "He knows what. She knows what.", 2),
        ("docs/start.md", "So it is. So it was.", 2), ("docs/start.md", "It is so. It was so.", 0),
        ("docs/start.md", "Said it, said it.", 2), ("docs/start.md", "No further word, no further one.", 2),
        ("docs/internals/design.md", long_one, 0),
        ("docs/start.md", "w " * 20001, 3), ("docs/start.md", "x" * 121, 1),
        ("docs/howto/gpu.md", "Text." + command + fails, 0), ("docs/howto/gpu.md", "Text." + fails, 1),
        ("docs/howto/gpu.md", "Text." + command, 1)]
    failures = 0
    for path, text, want in trials:
        with tempfile.TemporaryDirectory() as name:
            page = pathlib.Path(name, path)
            page.parent.mkdir(parents=True)
            page.write_text(text, encoding="utf-8")
            found = check(pathlib.Path(name))
        if len(found) != want:
            failures += 1
            print(f"self-test: {text[:50]}: {found}, expected {want}", file=sys.stderr)
    print(f"words self-test: {len(trials)} pages, {failures} failures")
    return 1 if failures else 0


def main():
    args = sys.argv[1:]
    if args == ["--self-test"]:
        return self_test()
    if args == ["--count"]:
        counts = [(len(page.read_text(encoding="utf-8").split()), page.relative_to(ROOT)) for page in pages(ROOT)]
        for count, page in counts:
            print(f"{count:6} {page}")
        print(f"{sum(count for count, _ in counts):6} of {MAX_WORDS}")
        return 0
    found = check(pathlib.Path(args[0]) if args else ROOT)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
