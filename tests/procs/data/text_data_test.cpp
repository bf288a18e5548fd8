// Data in common forms: text with a tokenizer gives the bits of a token file, and `fsdp-run data`
// shows a table and writes the YAML file for it.
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace text_data_test {

using namespace onnx_bytes;

constexpr int64_t kLength = 8, kWidth = 6;

// Logits for the next token, from each token by itself.
std::string language_model(int64_t vocabulary) {
  std::vector<float> values(static_cast<size_t>(vocabulary * kWidth));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 101) / 101;
  SmallModel model;
  model.nodes = {node("Gather", {"table", "tokens"}, {"vectors"}, "embed"),
                 node("MatMul", {"vectors", "head"}, {"logits"}, "predict")};
  model.initializers = {tensor("table", kFloat, {vocabulary, kWidth}, raw(values)),
                        tensor("head", kFloat, {kWidth, vocabulary}, raw(values))};
  model.inputs = {declared("tokens", {-1, kLength}, kInt64)};
  model.outputs = {declared("logits", {-1, kLength, vocabulary})};
  return model.bytes();
}

class TextFolder : public ModelFolder {
 public:
  TextFolder() {
    const std::string source = fixture("tokenizers/");
    write("model.onnx", language_model(704));
    write("tokenizer.json", content(source + "gpt2.json"));
    std::istringstream texts(content(source + "texts.txt")), ids(content(source + "gpt2.ids"));
    std::string objects;
    for (std::string text; std::getline(texts, text);) {
      objects += nlohmann::json{{"text", text}}.dump() + "\n";
    }
    write("f.jsonl", objects);
    std::vector<uint16_t> tokens;
    for (uint16_t id = 0; ids >> id;) tokens.push_back(id);
    write("f.bin", testing_data::bytes_of(tokens));
    const std::string rows = format_text("sequence_length: {}, stride: 4", kLength);
    for (const auto& [name, keys] :
         {std::pair("text.yaml", "text: f.jsonl, tokenizer: tokenizer.json"),
          std::pair("bin.yaml", "file: f.bin")}) {
      write(name,
            format_text("train:\n  tokens: {{{}, {}}}\n  labels: {{{}, {}, next_token: true}}\n",
                        keys, rows, keys, rows));
    }
  }

  Words with(const std::string& yaml) const {
    return train() + Words{"--data", *this / yaml, "--steps", "5"};
  }
};

TEST(TextDataTest, HasTheBitsOfATokenFile) {
  const TextFolder folder;
  for (const int count : {1, 2}) {
    std::vector<std::string> trained;
    for (const char* yaml : {"bin.yaml", "text.yaml"}) {
      const Finished run = Program::run(folder.with(yaml) + ranks(count));
      ASSERT_EQ(run.status, 0) << run.err;
      trained.push_back(content(folder.output()));
      std::filesystem::remove(folder.output());
    }
    EXPECT_TRUE(trained[0] == trained[1]) << count << " ranks";
  }
  std::vector<std::string> predicted;
  for (const char* yaml : {"bin.yaml", "text.yaml"}) {
    const Finished run = Program::run(
        fsdp_run({"predict", folder.model(), "--data", folder / yaml, "-o", folder / "p.npy"}));
    ASSERT_EQ(run.status, 0) << run.err;
    predicted.push_back(content(folder / "p.npy"));
  }
  EXPECT_TRUE(predicted[0] == predicted[1]);
}

TEST(TextDataTest, Mistakes) {
  const TextFolder folder;
  folder.write("model.onnx", language_model(600));
  expect_refused(folder, folder.with("text.yaml"),
                 {"f.jsonl: column 'tokens': the tokenizer", "tokenizer.json has ",
                  "at most the 600 of the model's table"});
  folder.write("model.onnx", language_model(704));
  folder.write("f.jsonl", "{\"text\": \"good\"}\n{\"text\": \"\xff\"}\n");
  expect_refused(folder, folder.with("text.yaml"),
                 {"f.jsonl line 2: expected text in UTF-8, found the byte ff"});
  folder.write("tokenizer.json", R"({"model": {"type": "WordLevel"}})");
  expect_refused(folder, folder.with("text.yaml"),
                 {"tokenizer.json: model: type 'WordLevel' is not supported"});
}

// Vectors for the tokens and for the eight positions.
enum class Positions { kSliced, kCounted, kFixed, kOfTokens };

std::string positioned_model(Positions kind) {
  SmallModel model;
  const auto values = [](int64_t rows) {
    std::vector<float> made(static_cast<size_t>(rows * kWidth));
    for (size_t i = 0; i < made.size(); ++i) made[i] = static_cast<float>(i * 37 % 101) / 101;
    return raw(made);
  };
  model.initializers = {tensor("table", kFloat, {704, kWidth}, values(704)),
                        tensor("positions", kFloat, {kLength, kWidth}, values(kLength)),
                        tensor("head", kFloat, {kWidth, 3}, values(3)),
                        tensor("zero", kInt64, {}, raw<int64_t>({0})),
                        tensor("one", kInt64, {}, raw<int64_t>({1})),
                        tensor("zeros", kInt64, {1}, raw<int64_t>({0})),
                        tensor("ones", kInt64, {1}, raw<int64_t>({1}))};
  model.nodes = {node("Gather", {"table", "tokens"}, {"vectors"}, "embed")};
  const bool counted = kind == Positions::kCounted;
  if (kind == Positions::kSliced || counted) {
    model.nodes.push_back(node("Shape", {"tokens"}, {"shape"}, "measure"));
    model.nodes.push_back(node("Gather", {"shape", counted ? "one" : "ones"}, {"length"}, "take"));
  }
  if (kind == Positions::kSliced) {
    model.nodes.push_back(node("Slice", {"positions", "zeros", "length", "zeros"}, {"of"}, "cut"));
  } else if (counted) {
    model.nodes.push_back(node("Range", {"zero", "length", "one"}, {"places"}, "count"));
    model.nodes.push_back(node("Gather", {"positions", "places"}, {"of"}, "look_up"));
  } else if (kind == Positions::kOfTokens) {
    model.nodes.push_back(node("Min", {"tokens", "one"}, {"known"}, "know"));
    model.nodes.push_back(node("CumSum", {"known", "one"}, {"counted"}, "count"));
    model.nodes.push_back(node("Sub", {"counted", "one"}, {"places"}, "shift"));
    model.nodes.push_back(node("Gather", {"positions", "places"}, {"of"}, "look_up"));
  }
  const char* const of = kind == Positions::kFixed ? "positions" : "of";
  model.nodes.push_back(node("Add", {"vectors", of}, {"placed"}, "place"));
  model.nodes.push_back(node("MatMul", {"placed", "head"}, {"scores"}, "score"));
  model.nodes.push_back(node("ReduceMean", {"scores", "ones"}, {"logits"}, "average") +
                        message(5, message(1, "keepdims") + number(3, 0) + number(20, 2)));
  model.inputs = {
      declared("tokens", {-1, kind == Positions::kFixed ? kLength : kLengthAxis}, kInt64)};
  model.outputs = {declared("logits", {-1, 3})};
  return model.bytes();
}

// A text with more tokens than the model has positions: the line tells how to cut it.
TEST(TextDataTest, TextsThatAreTooLongNameTheKeyThatCutsThem) {
  const TextFolder folder;
  const auto describe = [&](const std::string& keys) {
    folder.write("rows.yaml", "train:\n  tokens: {text: f.jsonl, tokenizer: tokenizer.json, " +
                                  keys + "}\n  labels: {file: labels.csv, column: kind}\n");
  };
  std::string labels = "kind\n";
  const std::string texts = content(folder / "f.jsonl");
  for (int64_t i = std::ranges::count(texts, '\n'); i > 0; --i)
    labels += std::to_string(i % 3) + "\n";
  folder.write("labels.csv", labels);
  const Words data{"--data", folder / "rows.yaml"};
  const Words train = folder.train() + data;
  const Words predict = fsdp_run({"predict", folder.model(), "-o", folder / "p.npy"}) + data;
  for (const Positions kind : {Positions::kSliced, Positions::kCounted, Positions::kFixed}) {
    SCOPED_TRACE(static_cast<int>(kind));
    folder.write("model.onnx", positioned_model(kind));
    const bool fixed = kind == Positions::kFixed;
    const Words facts{"rows.yaml", "column 'tokens'", "8 tokens", "model.onnx",
                      fixed ? "`max_length: 8` with `pad_to: 8`" : "`max_length: 8` cuts"};
    describe("pad_to: longest");
    expect_refused(folder, train, facts);
    const Finished predicted = Program::run(predict);
    EXPECT_EQ(predicted.status, 2);
    expect_one_line(predicted.err, facts);
    describe(fixed ? "pad_to: 8, max_length: 8" : "pad_to: longest, max_length: 8");
    expect_trains(folder, data);
    EXPECT_EQ(Program::run(predict).status, 0);
    std::filesystem::remove(folder / "p.npy");
  }
  describe("pad_to: 4, max_length: 4");
  expect_refused(folder, train, {"`pad_to: 8` fills shorter texts"});
  // The tokens decide these positions, so only the node that looks them up can tell.
  folder.write("model.onnx", positioned_model(Positions::kOfTokens));
  describe("pad_to: longest");
  for (const Words& words : {train, predict}) {
    const Finished run = Program::run(words);
    EXPECT_EQ(run.status, 2);
    expect_one_line(run.err,
                    {"'look_up'", "is outside -8..7", "column 'tokens'", "`max_length: 8`"});
  }
}

constexpr const char* kFlowers =
    "length,width,species,planted\r\n"
    "5.1,3.5,\"iris, blue\",2024-01-31\r\n"
    "4.9,,rose,2024-02-01\r\n"
    "4.5,3.2,rose,2024-02-02\r\n"
    "5.5,2.5,\"iris, blue\",2024-02-03\r\n";

SmallModel two_inputs() {
  SmallModel model = linear_model();
  model.initializers[0] = tensor("w", kFloat, {2, 3}, raw<float>({1, 2, 3, 4, 5, 6}));
  model.inputs = {declared("x", {-1, 2})};
  return model;
}

TEST(DataCommandTest, SurveysATableAndWritesItsDescription) {
  const ModelFolder folder;
  folder.write("model.onnx", two_inputs().bytes());
  folder.write("flowers.csv", kFlowers);
  const Words words = fsdp_run({"data", folder / "flowers.csv", folder.model()});
  const Finished shown = Program::run(words);
  ASSERT_EQ(shown.status, 0) << shown.err;
  EXPECT_EQ(shown.err, "");
  for (const char* part :
       {"length   float64", "4.5 .. 5.5", "2 classes: iris, blue, rose", "date", "gets of row 0",
        "x: {file: flowers.csv, column: [length, width], missing: 0}",
        "labels: {file: flowers.csv, column: species}"}) {
    EXPECT_THAT(shown.out, testing::HasSubstr(part));
  }
  const Finished as_json = Program::run(words + Words{"--json"});
  ASSERT_EQ(as_json.status, 0) << as_json.err;
  const auto json = nlohmann::json::parse(as_json.out);
  EXPECT_EQ(json["columns"][1]["missing"], 1);
  EXPECT_EQ(json["columns"][1]["least"], 2.5);
  EXPECT_EQ(json["columns"][2]["classes"], (std::vector<std::string>{"iris, blue", "rose"}));
  ASSERT_EQ(json["inputs"].size(), 1u);
  EXPECT_NEAR(json["inputs"][0]["values"][0].get<double>(), 5.1, 1e-6);

  // The description trains.
  folder.write("flowers.yaml", json["description"].get<std::string>());
  expect_trains(folder, {"--data", folder / "flowers.yaml"});
  // A survey of a description shows the errors that would end a run.
  const Finished described =
      Program::run(fsdp_run({"data", folder / "flowers.yaml", folder.model()}));
  EXPECT_EQ(described.status, 0) << described.err;
  EXPECT_THAT(described.out, testing::HasSubstr("2 classes: iris, blue, rose"));
  folder.write("model.onnx", linear_model().bytes());
  const Finished refused =
      Program::run(fsdp_run({"data", folder / "flowers.yaml", folder.model()}));
  EXPECT_EQ(refused.status, 2);
  expect_one_line(refused.err, {"column 'x': expected rows of [4], found [2]"});
  EXPECT_THAT(refused.out, testing::HasSubstr("2 classes"));
}

TEST(PrepareTest, WritesADescriptionThatTrains) {
  const ModelFolder folder;
  folder.write("model.onnx", two_inputs().bytes());
  std::string rows;
  for (int i = 0; i < 6; ++i)
    rows += std::string(kFlowers).substr(std::strlen("length,width,species,planted\r\n"));
  folder.write("flowers.csv", "length,width,species,planted\r\n" + rows);
  const Words words = fsdp_run({"prepare", folder / "flowers.csv", folder.model()});
  const Finished made = Program::run(words);
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(content(folder / "flowers.yaml"),
            "train:\n"
            "  x: {file: flowers.csv, column: [length, width], missing: 0}\n"
            "  labels: {file: flowers.csv, column: species}\n"
            "split: 0.1\n"
            "stratify: labels\n");
  EXPECT_THAT(made.out, testing::HasSubstr("--data " + folder / "flowers.yaml"));
  expect_trains(folder, {"--data", folder / "flowers.yaml"});

  // It overwrites nothing, and writes nothing that a run would refuse.
  const Finished again = Program::run(words);
  EXPECT_EQ(again.status, 2);
  expect_one_line(again.err, {"flowers.yaml: expected no such file, found one: -o FILE.yaml"});
  folder.write("model.onnx", linear_model().bytes());
  const Words other = words + Words{"-o", folder / "new/other.yaml"};
  std::filesystem::create_directory(folder / "new");
  const Finished refused = Program::run(other);
  EXPECT_EQ(refused.status, 2);
  expect_one_line(refused.err, {"column 'x': expected rows of [4], found [2]"});
  EXPECT_FALSE(std::filesystem::exists(folder / "new/other.yaml"));
  // The paths are relative to the file.
  folder.write("model.onnx", two_inputs().bytes());
  ASSERT_EQ(Program::run(other).status, 0);
  EXPECT_THAT(content(folder / "new/other.yaml"), testing::HasSubstr("{file: ../flowers.csv, "));
  expect_trains(folder, {"--data", folder / "new/other.yaml"});
}

TEST(PrepareTest, MatchesFoldersOfTablesAndArrays) {
  const ModelFolder folder;
  folder.write("model.onnx", two_inputs().bytes());
  folder.write("tables/train.csv", kFlowers);
  folder.write("tables/test.csv", kFlowers);
  const Finished tables = Program::run(fsdp_run({"prepare", folder / "tables/", folder.model()}));
  ASSERT_EQ(tables.status, 0) << tables.err;
  EXPECT_THAT(content(folder / "tables.yaml"),
              testing::HasSubstr("eval:\n  x: {file: tables/test.csv, column: [length, width]"));
  expect_trains(folder, {"--data", folder / "tables.yaml"});

  folder.write("model.onnx", linear_model().bytes());
  folder.write("arrays/rows.npy", linear_inputs(24));
  folder.write("arrays/y.npy", linear_labels(24));
  const Finished arrays = Program::run(fsdp_run({"prepare", folder / "arrays", folder.model()}));
  ASSERT_EQ(arrays.status, 0) << arrays.err;
  EXPECT_EQ(content(folder / "arrays.yaml"),
            "train:\n  x: {file: arrays/rows.npy}\n  labels: {file: arrays/y.npy}\n"
            "split: 0.1\n");
  expect_trains(folder, {"--data", folder / "arrays.yaml"});
}

// Prepares `data` and runs the printed command; returns the description.
std::string prepared(const ModelFolder& folder, const std::string& data, const std::string& loss) {
  const std::string yaml = folder / "made.yaml";
  const Finished made =
      Program::run(fsdp_run({"prepare", folder / data, folder.model(), "-o", yaml}));
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.out, testing::HasSubstr("--data " + yaml + " --loss " + loss + "\n")) << data;
  Words words = fsdp_run({folder.model(), "--data", yaml, "--run-dir", "none", "--loss"});
  std::istringstream more(loss);  // and further options
  for (std::string word; more >> word;) words.push_back(word);
  const Finished run = Program::run(words);
  EXPECT_EQ(run.status, 0) << data << ": " << run.err;
  const std::string text = content(yaml);
  std::filesystem::remove(yaml);
  return text;
}

TEST(PrepareTest, PrintsACommandThatTrains) {
  const ModelFolder folder;
  folder.write("model.onnx", two_inputs().bytes());
  // A part for evaluation without labels is left out; among several names the first counts.
  folder.write("tables/train.csv", "a,b,label\n1,2,0\n3,4,2\n5,6,1\n");
  folder.write("tables/test.csv", "a,b\n1,2\n");
  EXPECT_THAT(prepared(folder, "tables", "cross_entropy"),
              testing::HasSubstr("# tables/test.csv has no column 'label': it is left out"));
  folder.write("tables/val.csv", "a,b,label\n1,,0\n");
  EXPECT_THAT(prepared(folder, "tables", "cross_entropy"),
              testing::HasSubstr("tables/train.csv, column: [a, b], missing: 0}"));
  // A row with a missing name does not count in the loss.
  folder.write("na.csv", "a,b,label\n1,2,NA\n3,4,u\n5,6,u\n7,8,v\n9,0,v\n");
  EXPECT_THAT(prepared(folder, "na.csv", "cross_entropy"), testing::HasSubstr("missing: -100"));
  // More classes than the prediction has scores.
  folder.write("four.csv", "a,b,label\n1,2,t\n3,4,u\n5,6,u\n7,8,v\n9,0,w\n1,1,t\n2,2,v\n3,3,w\n");
  prepared(folder, "four.csv", "cross_entropy --replace-head 4");
  folder.write("four.csv", "a,b,label\n1,2,0\n3,4,1\n5,6,1\n7,8,3\n9,0,2\n");
  prepared(folder, "four.csv", "cross_entropy --replace-head 4");
  folder.write("list.jsonl", "{\"f\": [1, 2], \"label\": 0}\n{\"f\": [3, 4], \"label\": 1}\n");
  EXPECT_THAT(prepared(folder, "list.jsonl", "cross_entropy"), testing::HasSubstr("field: f}"));

  folder.write("model.onnx", linear_model().bytes());
  for (const auto& [part, rows] : {std::pair("test", 5), std::pair("train", 24)}) {
    folder.write(format_text("arrays/X_{}.npy", part), linear_inputs(static_cast<size_t>(rows)));
    folder.write(format_text("arrays/y_{}.npy", part), linear_labels(static_cast<size_t>(rows)));
  }
  EXPECT_EQ(prepared(folder, "arrays", "cross_entropy"),
            "train:\n  x: {file: arrays/X_train.npy}\n  labels: {file: arrays/y_train.npy}\n"
            "eval:\n  x: {file: arrays/X_test.npy}\n  labels: {file: arrays/y_test.npy}\n");
  const Finished refused =
      Program::run(fsdp_run({"prepare", folder / "list.jsonl", folder.model()}));
  EXPECT_EQ(refused.status, 2);
  expect_one_line(refused.err, {"list.jsonl: expected columns for input x, found none that fit"});

  SmallModel one = linear_model();  // one number from a table feeds [batch, 1]
  one.initializers = {tensor("w", kFloat, {1, 1}, raw<float>({1})),
                      tensor("b", kFloat, {1}, raw<float>({0}))};
  one.inputs = {declared("x", {-1, 1})};
  one.outputs = {declared("logits", {-1, 1})};
  folder.write("model.onnx", one.bytes());
  folder.write("one.csv", "size,price\n1,2.5\n3,4\n");
  EXPECT_THAT(prepared(folder, "one.csv", "mse"), testing::HasSubstr("column: [size]}"));
}

TEST(DataCommandTest, SurveysThePartsOfASplit) {
  const ModelFolder folder;
  folder.write("data.yaml", "train:\n  x: {file: data/x.npy}\nsplit: 0.25\n");
  const Finished run = Program::run(fsdp_run({"data", folder / "data.yaml", "--json"}));
  ASSERT_EQ(run.status, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["train"][0]["rows"], 9);
  EXPECT_EQ(json["eval"][0]["rows"], 3);
}

TEST(DataCommandTest, ShowsTexts) {
  const TextFolder folder;
  const Finished plain = Program::run(fsdp_run({"data", folder / "text.yaml", folder.model()}));
  ASSERT_EQ(plain.status, 0) << plain.err;
  EXPECT_THAT(plain.out, testing::HasSubstr("tokens"));
  folder.write("f.txt", "One line\nand another\n");
  const Finished text = Program::run(fsdp_run({"data", folder / "f.txt"}));
  ASSERT_EQ(text.status, 0) << text.err;
  for (const char* part : {"f.txt", "One line | and another",
                           "text: f.txt, tokenizer: tokenizer.json", "next_token: true"}) {
    EXPECT_THAT(text.out, testing::HasSubstr(part));
  }
  const Finished none = Program::run(fsdp_run({"data", folder / "none.csv"}));
  EXPECT_EQ(none.status, 2);
  expect_one_line(none.err, {"none.csv"});
}

}  // namespace text_data_test
}  // namespace ofsdp
