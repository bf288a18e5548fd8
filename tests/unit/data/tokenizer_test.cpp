// Token ids against the `tokenizers` package (tests/fixtures/tokenizers/make.py), parts of a
// tokenizer.json that are refused, and rows of tokens.
#include <sstream>

#include "fsdp/comm/communicator.h"
#include "runtime/data/dataset.h"
#include "runtime/data/token_rows.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace tokenizer_test {

using namespace testing_data;
using Ids = std::vector<TokenId>;

const std::string kTokenizers = OFSDP_SOURCE_DIR "/tests/fixtures/tokenizers/";

std::vector<std::string> lines_of_file(const std::string& path) {
  std::vector<std::string> lines;
  std::istringstream text(onnx_bytes::content(path));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

Ids read_ids(const std::string& line) {
  Ids ids;
  std::istringstream text(line);
  for (TokenId id = 0; text >> id;) ids.push_back(id);
  return ids;
}

// The ids of a text with the ids around it.
Ids encoded(const Tokenizer& tokenizer, const std::string& text) {
  Ids ids = tokenizer.surrounding().before;
  Tokenizer::SeenWords seen;
  const Status status = tokenizer.encode(text, ids, seen);
  EXPECT_TRUE(status.ok()) << status.message();
  const Ids& after = tokenizer.surrounding().after;
  ids.insert(ids.end(), after.begin(), after.end());
  return ids;
}

class KindTest : public ::testing::TestWithParam<const char*> {};

TEST_P(KindTest, IdsAreThoseOfThePackage) {
  const std::string name = kTokenizers + GetParam();
  auto tokenizer = open_tokenizer(name + ".json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  const auto texts = lines_of_file(kTokenizers + "texts.txt"), ids = lines_of_file(name + ".ids");
  ASSERT_GE(texts.size(), 70u);
  ASSERT_EQ(texts.size(), ids.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(encoded(**tokenizer, texts[i]), read_ids(ids[i])) << i + 1 << ": " << texts[i];
  }
}

INSTANTIATE_TEST_SUITE_P(All, KindTest,
                         ::testing::Values("albert", "bert", "bert_cased", "clip", "gpt2", "llama2",
                                           "llama3", "qwen", "roberta", "t5", "wordpiece", "xlmr"));

// A tokenizer for the letters a to c and their merges.
std::string small(const std::string& parts, const std::string& model = "") {
  return format_text(
      R"({{"added_tokens": [], {}"model": {{"type": "BPE", {}"vocab": {{"a": 0, "b": 1, "c": 2, )"
      R"("ab": 3, "abc": 4}}, "merges": ["a b", ["ab", "c"]]}}}})",
      parts, model);
}

Ids ids_of(const std::string& json, const std::string& text) {
  auto tokenizer = Tokenizer::parse(json, "t.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  return tokenizer.ok() ? encoded(**tokenizer, text) : Ids();
}

TEST(TokenizerTest, PairsAreMerged) {
  EXPECT_EQ(ids_of(small(""), "abcabxa"), (Ids{4, 3, 0}));  // text without a token is dropped
  EXPECT_EQ(ids_of(small("", R"("unk_token": "c", )"), "xxa"), (Ids{2, 2, 0}));
  EXPECT_EQ(ids_of(small("", R"("unk_token": "c", "fuse_unk": true, )"), "xxa"), (Ids{2, 0}));
}

// Each behaviour of Split, with a delimiter at both ends and between.
TEST(TokenizerTest, DelimitersGoWhereTheyShould) {
  const auto pieces = [](const std::string& behavior, const std::string& more = "") {
    return ids_of(small(format_text(R"("pre_tokenizer": {{"type": "Split", "behavior": "{}", )"
                                    R"("pattern": {{"Regex": "b+"}}{}}}, )",
                                    behavior, more)),
                  "babca");
  };
  EXPECT_EQ(pieces("Isolated"), (Ids{1, 0, 1, 2, 0}));
  EXPECT_EQ(pieces("Removed"), (Ids{0, 2, 0}));
  EXPECT_EQ(pieces("MergedWithPrevious"), (Ids{1, 3, 2, 0}));
  EXPECT_EQ(pieces("MergedWithNext"), (Ids{1, 0, 1, 2, 0}));
  EXPECT_EQ(pieces("Removed", R"(, "invert": true)"), (Ids{1, 1}));
}

TEST(TokenizerTest, WhatIsNotSupportedIsRefusedWithItsKey) {
  const auto refuse = [](const std::string& json, const std::vector<std::string>& facts) {
    expect_input_error(Tokenizer::parse(json, "t.json"), facts);
  };
  refuse("[]", {"t.json: expected a tokenizer.json"});
  refuse("{\"model\": 1}", {"t.json: key 'model': expected an object, found '1'"});
  refuse(R"({"model": {"type": "WordLevel"}})",
         {"t.json: model: type 'WordLevel' is not supported (expected one of BPE, Unigram"});
  refuse(small(R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "Odd"}]}, )"),
         {"t.json: normalizer: normalizers[0]: type 'Odd' is not supported"});
  refuse(small(R"("normalizer": {"type": "NFC", "odd": 1}, )"),
         {"t.json: normalizer: key 'odd' is not supported here"});
  refuse(small("", R"("dropout": 0.1, )"), {"t.json: model: key 'dropout'", "found '0.1'"});
  refuse(small(R"("odd": {}, )"), {"t.json: key 'odd' is not supported here"});
  refuse(small(R"("post_processor": {"type": "TemplateProcessing", "single": [], )"
               R"("special_tokens": {}}, )"),
         {"post_processor: key 'single': expected one Sequence"});
  refuse(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})",
         {"merges: expected pairs of the vocabulary's tokens, found \"a b\""});
  refuse(R"({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})", {"key 'vocab'"});
  refuse(R"({"added_tokens": [{"id": 7, "content": "a"}], "model": {"type": "BPE", )"
         R"("vocab": {"a": 0}, "merges": []}})",
         {"added_tokens[0]: key 'id'"});
  for (const char* pattern :
       {"a{,2}", "a{1,2}+", "[a&&b]", "[a[^b]]", "(?m:a)", "\\\\bx", "(a", "\\\\1"}) {
    refuse(small(format_text(R"("pre_tokenizer": {{"type": "Split", "behavior": "Removed", )"
                             R"("pattern": {{"Regex": "{}"}}}}, )",
                             pattern)),
           {"pre_tokenizer: pattern: regular expression '"});
  }
  refuse(small(R"("normalizer": {"type": "Precompiled", "precompiled_charsmap": "!"}, )"),
         {"precompiled_charsmap", "base64"});
}

// Cut off anywhere, or with a byte changed, a file is refused or read.
TEST(TokenizerTest, DamagedFiles) {
  for (const char* name : {"xlmr", "bert_cased", "qwen"}) {
    const std::string whole = onnx_bytes::content(kTokenizers + name + ".json");
    for (size_t i = 0; i < whole.size(); i += 211) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ (i % 2 == 0 ? 1 : 4));
      for (const std::string& json : {whole.substr(0, i), changed}) {
        auto tokenizer = Tokenizer::parse(json, "t.json");
        if (!tokenizer.ok()) continue;
        Ids ids;
        Tokenizer::SeenWords seen;
        (void)(*tokenizer)->encode("ﬁne Words, mot 12 中", ids, seen);
      }
    }
  }
}

class TokenRowsTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Dataset>> open(const std::string& yaml,
                                        const std::vector<WantedColumn>& wanted) {
    std::filesystem::create_directories(folder_.path());
    for (const char* name : {"gpt2", "bert"}) {
      folder_.write(format_text("{}.json", name),
                    onnx_bytes::content(kTokenizers + name + ".json"));
    }
    OFSDP_ASSIGN_OR_RETURN(const DataSpec spec, parse_data_yaml(yaml, folder_.path(), "d.yaml"));
    std::vector<std::string> names;
    for (const WantedColumn& one : wanted) names.push_back(one.name);
    OFSDP_ASSIGN_OR_RETURN(auto data, Dataset::open(spec.train, names, *communicator_, ledger_));
    OFSDP_RETURN_IF_ERROR(data->bind(wanted));
    return data;
  }

  std::vector<int64_t> rows(Dataset& data, int column) {
    const auto samples = counted<int64_t>(static_cast<size_t>(data.samples()));
    const BoundColumn& bound = data.columns()[static_cast<size_t>(column)];
    std::vector<int64_t> found(samples.size() * bound.row_bytes() / sizeof(int64_t));
    EXPECT_TRUE(data.read_rows(column, samples, reinterpret_cast<std::byte*>(found.data())).ok());
    return found;
  }

  std::vector<int64_t> ids(const char* tokenizer, const std::string& text) {
    auto opened = open_tokenizer(kTokenizers + tokenizer + ".json");
    const Ids found = encoded(**opened, text);
    return {found.begin(), found.end()};
  }

  TempFolder folder_;
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
};

const WantedColumn kTokens{"tokens", DType::kInt64, {4}};
const WantedColumn kNext{"labels", DType::kInt64, {4}, true, true};
const WantedColumn kInputIds{"input_ids", DType::kInt64, {-1}};

TEST_F(TokenRowsTest, WindowsOfOneText) {
  const std::string text = "The quick brown fox\njumps over the lazy dog.\r\n";
  folder_.write("f.txt", "\xef\xbb\xbf" + text);
  const std::string keys = "{text: f.txt, tokenizer: gpt2.json, sequence_length: 4, stride: 2";
  auto data =
      open(format_text("train: {{tokens: {}}}, labels: {}, next_token: true}}}}", keys, keys),
           {kTokens, kNext});
  ASSERT_TRUE(data.ok()) << data.error().message();
  const std::vector<int64_t> all = ids("gpt2", text);
  const auto tokens = rows(**data, 0), next = rows(**data, 1);
  ASSERT_EQ((*data)->samples(), (std::ssize(all) - 5) / 2 + 1);
  for (size_t row = 0; row < tokens.size() / 4; ++row) {
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(tokens[4 * row + i], all[2 * row + i]);
      EXPECT_EQ(next[4 * row + i], all[2 * row + i + 1]);
    }
  }
  EXPECT_EQ((*data)->shared_bytes(), region_bytes(all.size() * 4)) << "encoded once, held once";
}

TEST_F(TokenRowsTest, TextsFollowEachOther) {
  folder_.write("f.jsonl", "{\"a\": {\"b\": \"One two\"}}\n\n{\"a\": {\"b\": \"three\"}}\n");
  auto data = open(
      "train: {tokens: {text: f.jsonl, field: a.b, tokenizer: gpt2.json, sequence_length: 1, "
      "separator: <|endoftext|>}}",
      {{"tokens", DType::kInt64, {1}}});
  ASSERT_TRUE(data.ok()) << data.error().message();
  std::vector<int64_t> expected = ids("gpt2", "One two");
  expected.push_back(0);
  const auto second = ids("gpt2", "three");
  expected.insert(expected.end(), second.begin(), second.end());
  expected.push_back(0);
  EXPECT_EQ(rows(**data, 0), expected);
}

TEST_F(TokenRowsTest, ARowForEachText) {
  folder_.write("f.csv", "label,review\n1,\"So, good\"\n0,bad\n");
  folder_.write("f.txt", "So, good\r\nbad");
  const std::vector<int64_t> first = ids("bert", "So, good"), second = ids("bert", "bad");
  ASSERT_GT(first.size(), second.size());
  for (const char* source : {"text: f.csv, column: review", "text: f.txt"}) {
    auto data =
        open(format_text("train: {{input_ids: {{{}, tokenizer: bert.json, pad_to: longest}}, "
                         "attention_mask: auto}}",
                         source),
             {kInputIds, {"attention_mask", DType::kInt64, {-1}}});
    ASSERT_TRUE(data.ok()) << data.error().message();
    std::vector<int64_t> expected = first, mask(first.size(), 1);
    expected.insert(expected.end(), second.begin(), second.end());
    mask.resize(first.size() + second.size(), 1);
    expected.resize(2 * first.size(), 0);
    mask.resize(2 * first.size(), 0);
    EXPECT_EQ(rows(**data, 0), expected);
    EXPECT_EQ(rows(**data, 1), mask);
  }
  // The text is cut, not the tokens around it; labels are the next tokens.
  auto cut = open(
      "train: {input_ids: {text: f.txt, tokenizer: bert.json, max_length: 3, pad_to: 4, pad_value: "
      "-1, next_token: true}}",
      {kInputIds});
  ASSERT_TRUE(cut.ok()) << cut.error().message();
  EXPECT_EQ(rows(**cut, 0), (std::vector<int64_t>{first[1], 3, -1, -1, second[1], 3, -1, -1}));
}

TEST_F(TokenRowsTest, Mistakes) {
  folder_.write("f.txt", "good\nlong enough to need more\n");
  folder_.write("g.txt", "good\n");
  folder_.write("bad.txt", "good\n\xc3\x28\n");
  folder_.write("f.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n");
  folder_.write("f.csv", "review\na\n");
  const std::string pads = ", tokenizer: bert.json, pad_to: 4}}";
  for (const auto& [keys, facts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"text: f.txt}}", {"d.yaml:1", "needs the key 'tokenizer'"}},
           {"text: g.txt, max_length: 4, pad_value: 0.5" + pads,
            {"g.txt: expected a pad_value of int32, found 0.5"}},
           {"text: g.txt, max_length: 4, pad_value: 3e9" + pads,
            {"expected a pad_value of int32, found 3000000000"}},
           {"tokenizer: bert.json}}", {"with the key 'text'"}},
           {"text: f.txt, file: f.txt" + pads, {"'text' or 'file', found both"}},
           {"text: f.txt, tokenizer: bert.json}}", {"sequence_length", "pad_to", "neither"}},
           {"text: f.txt, sequence_length: 2" + pads, {"found both"}},
           {"text: f.txt, field: a" + pads, {"'field' is no key of 'f.txt'"}},
           {"text: f.txt, scale: 2" + pads, {"'scale' is no key of a text"}},
           {"text: f.txt, max_length: 1" + pads, {"max_length", "the 2 tokens", "found 1"}},
           {"text: f.txt, separator: odd" + pads, {"bert.json: separator", "found 'odd'"}},
           {"text: f.txt" + pads, {"f.txt line 2", "at most the 4 tokens", "max_length: 4"}},
           {"text: bad.txt" + pads, {"bad.txt line 2: expected text in UTF-8", "byte c3"}},
           {"text: f.jsonl" + pads, {"f.jsonl line 2: field 'text': expected a text, found '1'"}},
           {"text: f.jsonl, field: odd" + pads, {"f.jsonl line 1: no field 'odd'"}},
           {"text: f.csv, column: reviews" + pads, {"no column 'reviews'", "'review'?"}},
           {"text: none.txt" + pads, {"none.txt"}},
           {"text: f.txt, tokenizer: none.json, pad_to: 4}}", {"none.json"}},
           {"text: f.txt, tokenizer: gpt2.json, sequence_length: 4000}}",
            {"sequence_length 4000"}}}) {
    expect_input_error(open("train: {input_ids: {" + keys, {kInputIds}), facts);
  }
  // A table with fewer rows than the vocabulary has ids.
  WantedColumn small = kInputIds;
  small.below = 100;
  expect_input_error(
      open("train: {input_ids: {text: f.txt, tokenizer: bert.json, pad_to: longest}}", {small}),
      {"f.txt: column 'input_ids': the tokenizer ", "bert.json has ",
       "the 100 of the model's table"});
}

}  // namespace tokenizer_test
}  // namespace ofsdp
