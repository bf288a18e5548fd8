"""Draws random tokenizers for compare_tokens.py: a model over characters with random merges or scores, and any
normalizers, pre-tokenizers and added tokens of the `tokenizers` package."""
import random

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers as N, pre_tokenizers as P

SIGNS = [*' \t\u00a0\u3000▁abcABC1234é中ﬁ½.,!-\'"\u200b\u0301İ👍🏽ßΣ٣\u2028', "e\u0301", "<s>", "[X]", "  ", "\r",
         "newtok"]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
PATTERNS = [" ", "a", *map(Regex, (
    r"\s+", r"\d{1,2}", r"\p{L}+", r"\w+|[^\w\s]+", r"[^\S\n]", "(?i:AB|c)", "a*", "$", "(?<=a)b", r"[\p{P}\p{S}]?\p{L}+",
    r" ?[^(\s|[.,!])]+"))]


def heads():
    return random.random() < 0.5


def normalizer():
    return random.choice([
        N.NFC, N.NFKC, N.NFD, N.NFKD, N.Lowercase, N.StripAccents, N.Nmt,
        lambda: N.Strip(heads(), heads()),
        lambda: N.Replace(random.choice([" ", "a", "  ", Regex(r"\s+"), Regex("^a"), Regex(r"\p{L}(?=\d)")]),
                          random.choice(["", "▁", " ", "xy"])),
        lambda: N.BertNormalizer(*(heads() for _ in range(4))),
        lambda: N.Sequence([normalizer() for _ in range(random.randint(1, 3))])])()


def pre_tokenizer(inner=False):
    several = [] if inner else 4 * [lambda: P.Sequence([pre_tokenizer(True) for _ in range(random.randint(1, 3))])]
    return random.choice([
        P.Whitespace, P.WhitespaceSplit, P.BertPreTokenizer, lambda: P.CharDelimiterSplit("-"), lambda: P.Digits(heads()),
        lambda: P.Punctuation(random.choice(BEHAVIORS)),
        lambda: P.Metaspace(prepend_scheme=random.choice(["always", "never", "first"]), split=heads()),
        lambda: P.ByteLevel(add_prefix_space=heads(), use_regex=heads()),
        lambda: P.Split(random.choice(PATTERNS), random.choice(BEHAVIORS), heads()), *several])()


def model():
    signs = sorted({*"".join(SIGNS), *map(chr, range(33, 127)), *map(chr, range(0xa1, 0x180))})
    tokens, merges = [*(f"<0x{byte:02X}>" for byte in range(256)), *signs], []
    vocabulary = {token: i for i, token in enumerate(tokens)}
    for _ in range(200):
        left, right = random.choice(tokens[256:]), random.choice(tokens[256:])
        if left + right not in vocabulary and len(left + right) < 8:
            vocabulary[left + right] = len(vocabulary)
            merges.append((left, right))
            tokens.append(left + right)
    kind = random.choice(["pairs", "unigram", "pieces"])
    if kind == "pairs":
        unknown = {"unk_token": "a"} if heads() else {}
        return models.BPE(vocabulary, merges, byte_fallback=heads(), fuse_unk=heads(), ignore_merges=heads(), **unknown)
    if kind == "unigram":
        return models.Unigram([(token, round(-8 * random.random() - 1, 2)) for token in tokens], 0, heads())
    for token in [*tokens]:
        vocabulary.setdefault("##" + token, len(vocabulary))
    return models.WordPiece({**vocabulary, "[UNK]": len(vocabulary)}, unk_token="[UNK]",
                            max_input_chars_per_word=random.choice([5, 100]))


def tokenizer():
    made = Tokenizer(model())
    if random.random() < 0.7:
        made.normalizer = normalizer()
    if random.random() < 0.85:
        made.pre_tokenizer = pre_tokenizer()
    for content in ("<s>", "[X]", "newtok"):
        if heads():
            made.add_tokens([AddedToken(content, single_word=heads(), lstrip=heads(), rstrip=heads(), normalized=heads())])
    return Tokenizer.from_str(made.to_str())


def drawn(count):
    """Yields (name, tokenizer, texts), the same in each run."""
    for seed in range(count):
        random.seed(seed)
        texts = ["".join(random.choice(SIGNS) for _ in range(random.randint(0, 20))) for _ in range(60)]
        yield f"seed {seed}", tokenizer(), texts
