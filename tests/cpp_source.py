"""Reads C++ sources as text for the gates (names.py, headers.py, prose.py, references.py). It is not a compiler."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ("kernels", "importer", "fsdp", "runtime", "plugins")
HEADERS = {".h", ".cuh"}
SOURCES = HEADERS | {".cpp", ".cu", ".inc"}

_SKIP = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|[{}();=<>,:\[\]&*~]|\S")


def files(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def _blank(match):
    word = match[0]
    if word.startswith(("//", "/*")):
        return "\n" * word.count("\n") or " "
    if word.startswith("'") and re.match(r"'\d", word):  # 1'000
        return word
    return '""' + "\n" * word.count("\n")


def code(text):
    """Returns the text without comments, literals and preprocessor lines; line numbers stay."""
    text = re.sub(r"(?<=\d)'(?=\d)", "", text)
    return _DIRECTIVE.sub(lambda m: "\n" * m[0].count("\n"), _SKIP.sub(_blank, text))


def without_comments(text):
    """Returns the text without comments; literals stay."""
    return _SKIP.sub(lambda m: "" if m[0].startswith(("//", "/*")) else m[0], text)


def comments(text):
    """Returns only the comments, each at its place."""
    kept = list(re.sub(r"[^\n]", " ", text))
    for match in _SKIP.finditer(text):
        if match[0].startswith(("//", "/*")):
            kept[match.start():match.end()] = match[0]
    return "".join(kept)


def tokens(text):
    return _TOKEN.findall(code(text))


def _close(words, at, opening, closing):
    """Returns the place of the bracket that closes the one at `at`."""
    depth = 0
    while at < len(words):
        if words[at] == opening:
            depth += 1
        elif words[at] == closing:
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return len(words) - 1


def _parameter_types(words):
    """Returns parameters as text without names and defaults, so two spellings of one signature agree."""
    types, current, depth, default = [], [], 0, False
    for word in [*words, ","]:
        if word == "," and depth == 0:
            if len(current) > 1 and re.match(r"[A-Za-z_]", current[-1]) and current[-2] not in ("::", "const"):
                current = current[:-1]
            types.append(" ".join(current))
            current, default = [], False
            continue
        depth += word in "(<[{"
        depth -= word in ")>]}"
        default = default or (word == "=" and depth == 0)
        if not default:
            current.append(word)
    return ", ".join(types)


def definitions(text):
    """Returns the names that a header defines in namespaces: (kind, qualified name), functions with their
    parameters."""
    words = tokens(text)
    found, spaces = [], []

    def qualified(name):
        return "::".join([*spaces, name])

    at = 0
    while at < len(words):
        if words[at] == "}":
            if spaces:
                spaces.pop()
            at += 1
            continue
        if words[at] in (";", ","):
            at += 1
            continue
        # One declaration, up to ; or a brace at depth 0.
        start = at
        while at < len(words) and words[at] not in "{};":
            at = _close(words, at, "(", ")") + 1 if words[at] == "(" else at + 1
        head = words[start:at]
        ended = words[at] if at < len(words) else ";"
        if head[:1] == ["namespace"] or head[:2] == ["inline", "namespace"] or head[:1] == ["extern"] and ended == "{":
            if ended == "{":
                spaces.append("".join(w for w in head if w not in ("namespace", "inline")))
            at += 1
            continue
        found += _declared(head, ended, qualified)
        at = _close(words, at, "{", "}") + 1 if ended == "{" else at + (ended == ";")
    return found


def _without_template(head):
    while head[:1] == ["template"]:
        depth, i = 0, 1
        while i < len(head):
            depth += head[i] == "<"
            depth -= head[i] == ">"
            i += 1
            if depth == 0:
                break
        if i == 3:  # template <>: a specialization
            return []
        head = head[i:]
    return head


def _declared(head, ended, qualified):
    head = _without_template(head)
    if not head or head[0] in ("friend", "static_assert", "}"):
        return []
    if head[0] == "using":
        return [("alias", qualified(head[1]))] if len(head) > 2 and head[2] == "=" else []
    if head[0] in ("class", "struct", "union", "enum") and ended == "{":
        names = [w for w in head[1:] if w not in ("class", "struct", "final")]
        while names[:1] == ["["] or names[:1] in (["alignas"], ["__attribute__"]):
            end = _close(names, 0, "[", "]") if names[0] == "[" else _close(names, 1, "(", ")")
            names = names[end + 1:]
        if not names or names[0] in (":", "::") or names[1:2] == ["<"]:
            return []
        return [("type", qualified(names[0]))]
    if "(" in head and "=" not in head[:head.index("(")]:
        at = head.index("(")
        name = head[at - 1] if at else ""
        if ended != "{" or not re.match(r"[A-Za-z_]", name) or head[at - 2:at - 1] == ["::"] or "operator" in head:
            return []
        close = _close(head, at, "(", ")")
        return [("function", f"{qualified(name)}({_parameter_types(head[at + 1:close])})")]
    if {"constexpr", "constinit", "inline"} & set(head) or head[0] == "const":
        before = head[:head.index("=")] if "=" in head else head
        while before and before[-1] == "]":
            before = before[:before.index("[")]
        if before and re.match(r"[A-Za-z_]\w*$", before[-1]):
            return [("constant", qualified(before[-1]))]
    return []
