// Runs on text, images and a table that are killed twice in mid-epoch, at random updates, and go on
// on other ranks: every sample of the epoch is used exactly once. On equal ranks the trained file
// has the bits of the uninterrupted run.
//
// The model itself logs the samples: a row has three digits that number its sample. The loss
// includes the mean of the table's entries at these numbers. With SGD at rate 1, an update changes
// each of its samples' entries by 1 / the size of the global batch.
//
// OFSDP_TEST_KILLS is the number of tries for each kind (2), OFSDP_KILL_SEED chooses the updates.
#include <signal.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "importer/file/onnx_file.h"
#include "tests/support/namespaces.h"
#include "tests/support/png_bytes.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace sampling_test {

using namespace onnx_bytes;

constexpr int64_t kRows = 605, kBatch = 6, kBase = 16, kNumbers = kBase * kBase * kBase;
constexpr int64_t kUpdates = (kRows + kBatch - 1) / kBatch;

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

std::array<int, 3> digits(int64_t row) {
  return {static_cast<int>(row / (kBase * kBase)), static_cast<int>(row / kBase % kBase),
          static_cast<int>(row % kBase)};
}

std::string to_type(int type) {
  return message(5, message(1, "to") + number(3, static_cast<uint64_t>(type)) + number(20, 2));
}

// `axes`: a row's.
std::string counting_model(const std::vector<int64_t>& axes, int type) {
  const std::string scalar = message(5, message(1, "keepdims") + number(3, 0) + number(20, 2));
  std::vector<int64_t> dims{-1}, summed;
  for (const int64_t axis : axes) {
    summed.push_back(std::ssize(dims));
    dims.push_back(axis);
  }
  SmallModel model;
  model.nodes = {constant_node("places", kInt64, {3}, raw<int64_t>({kBase * kBase, kBase, 1})),
                 constant_node("axes", kInt64, {std::ssize(summed)}, raw(summed)),
                 constant_node("rows", kFloat, {1}, raw<float>({kRows})),
                 constant_node("one", kFloat, {1}, raw<float>({1})),
                 node("Cast", {"x"}, {"digits"}, "widen") + to_type(kInt64),
                 node("Mul", {"digits", "places"}, {"parts"}, "place"),
                 node("ReduceSum", {"parts", "axes"}, {"number"}, "number") + scalar,
                 node("Gather", {"table", "number"}, {"entries"}, "look_up"),
                 node("ReduceMean", {"entries"}, {"used"}, "used") + scalar,
                 // The bits of this weight depend on the order of the samples.
                 node("Cast", {"number"}, {"real"}, "real") + to_type(kFloat),
                 node("Div", {"real", "rows"}, {"share"}, "share"),
                 node("Mul", {"share", "weight"}, {"guess"}, "guess"),
                 node("Sub", {"guess", "one"}, {"error"}, "error"),
                 node("Mul", {"error", "error"}, {"square"}, "square"),
                 node("ReduceMean", {"square"}, {"order"}, "order") + scalar,
                 node("Add", {"used", "order"}, {"total"}, "total")};
  model.initializers = {tensor("table", kFloat, {kNumbers, 1}, raw(std::vector<float>(kNumbers))),
                        tensor("weight", kFloat, {1}, raw<float>({0.25f}))};
  model.inputs = {declared("x", dims, type)};
  model.outputs = {declared("total", {})};
  return model.bytes();
}

class SamplingTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    if (kind == "images") {
      folder_.write("model.onnx", counting_model({1, 1, 3}, kUint8));
      for (int64_t i = 0; i < kRows; ++i) {
        std::vector<uint8_t> pixels;
        for (const int digit : digits(i)) pixels.push_back(static_cast<uint8_t>(digit));
        folder_.write(format_text("rows/{:04}.png", i), testing_data::png_bytes(3, 1, 1, pixels));
      }
    } else {
      folder_.write("model.onnx", counting_model({3}, kInt64));
      kind == "text" ? write_text() : write_table();
    }
  }

  // A letter is a token.
  void write_text() {
    nlohmann::json tokenizer{{"model", {{"type", "BPE"}, {"merges", nlohmann::json::array()}}},
                             {"pre_tokenizer",
                              {{"type", "ByteLevel"},
                               {"add_prefix_space", false},
                               {"trim_offsets", true},
                               {"use_regex", true}}}};
    std::string lines;
    for (int i = 0; i < kBase; ++i) {
      tokenizer["model"]["vocab"][std::string(1, static_cast<char>('a' + i))] = i;
    }
    for (int64_t i = 0; i < kRows; ++i) {
      for (const int digit : digits(i)) lines += static_cast<char>('a' + digit);
      lines += '\n';
    }
    folder_.write("rows/tokenizer.json", tokenizer.dump());
    folder_.write("rows/f.txt", lines);
    folder_.write("rows/rows.yaml",
                  "train:\n  x: {text: f.txt, tokenizer: tokenizer.json, pad_to: 3}\n");
  }

  void write_table() {
    std::string lines = "a,b,c\n";
    for (int64_t i = 0; i < kRows; ++i) {
      const auto [a, b, c] = digits(i);
      lines += format_text("{},{},{}\n", a, b, c);
    }
    folder_.write("rows/f.csv", lines);
    folder_.write("rows/rows.yaml", "train:\n  x: {file: f.csv, column: [a, b, c]}\n");
  }

  Words train(int count) const {
    const std::string yaml = folder_ / "rows/rows.yaml";
    const bool described = std::filesystem::exists(yaml);
    return fsdp_run({folder_.model(), "--data", described ? yaml : folder_ / "rows", "--loss",
                     "output:total", "--optimizer", "sgd", "--lr", "1", "--epochs", "1", "--seed",
                     "5", "--global-batch-size", std::to_string(kBatch), "--output",
                     folder_.output(), "--metrics", folder_ / "m.jsonl"}) +
           ranks(count);
  }
  Words saving() const {
    return {"--checkpoint-dir",
            folder_ / "c",
            "--checkpoint-interval",
            "1step",
            "--checkpoint-sync",
            "on",
            "--resume",
            "latest"};
  }

  int64_t updates_done() const { return std::ssize(lines_of(content(folder_ / "m.jsonl"))); }

  // Kills the run once `more` updates have been made.
  void kill_after(const Words& words, int64_t more, int microseconds) {
    const bool first = !std::filesystem::exists(folder_ / "m.jsonl");
    const int64_t aim = (first ? 0 : updates_done()) + more;
    Program program(words);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(folder_ / "m.jsonl") || updates_done() < aim) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    for (const pid_t pid : children_of(program.pid())) kill(pid, SIGKILL);
    program.signal(SIGKILL);
    program.wait(20);
  }

  // The trained table tells how often each sample was used.
  void expect_each_sample_once() const {
    const auto file = OnnxFile::open(folder_.output());
    ASSERT_TRUE(file.ok());
    std::vector<float> table(kNumbers);
    ASSERT_EQ(file->initializers()[0].name, "table");
    ASSERT_TRUE(file->read(file->initializers()[0], 0, table).ok());
    const int64_t last = kRows % kBatch;
    std::map<int64_t, int64_t> counts;  // samples by batch size
    for (int64_t i = 0; i < kRows; ++i) {
      const double used = -static_cast<double>(table[static_cast<size_t>(i)]);
      const int64_t batch = used > 0 ? std::llround(1 / used) : 0;
      ASSERT_NEAR(used * static_cast<double>(batch), 1, 1e-5) << "sample " << i;
      ++counts[batch];
    }
    EXPECT_EQ(counts, (std::map<int64_t, int64_t>{{kBatch, kRows - last}, {last, last}}));
    for (int64_t i = kRows; i < kNumbers; ++i) ASSERT_EQ(table[static_cast<size_t>(i)], 0);
  }

  void expect_success(const Words& words) {
    const Finished run = Program::run(words);
    ASSERT_EQ(run.status, 0) << run.err;
  }

  ModelFolder folder_;
};

TEST_P(SamplingTest, TwoKillsUseEverySampleOnce) {
  std::map<int, std::string> whole;
  for (const int count : {1, 2, 3}) {
    expect_success(train(count));
    expect_each_sample_once();
    if (HasFailure()) return;
    whole[count] = content(folder_.output());
  }
  std::mt19937 random(static_cast<unsigned>(setting("OFSDP_KILL_SEED", 1)));
  const auto drawn = [&](int most) { return std::uniform_int_distribution(1, most)(random); };
  for (int trial = 0; trial < setting("OFSDP_TEST_KILLS", 2); ++trial) {
    std::filesystem::remove_all(folder_ / "c");
    std::filesystem::remove(folder_ / "m.jsonl");
    const bool same = trial % 2 == 1;  // number of ranks
    const int first = drawn(3);
    const std::array<int, 3> counts =
        same ? std::array{first, first, first} : std::array{drawn(3), drawn(3), drawn(3)};
    SCOPED_TRACE(
        format_text("trial {}: {}, {} and {} ranks", trial, counts[0], counts[1], counts[2]));
    for (int i = 0; i < 2; ++i) {
      kill_after(train(counts[static_cast<size_t>(i)]) + saving(), drawn(kUpdates / 2 - 5),
                 drawn(8000));
      if (HasFailure()) return;
    }
    expect_success(train(counts[2]) + saving());
    expect_each_sample_once();
    EXPECT_TRUE(!same || content(folder_.output()) == whole[first]) << "other bits";
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SamplingTest, testing::Values("text", "images", "table"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace sampling_test
}  // namespace ofsdp
