// Random changes to the bytes of a checkpoint: opening, verifying and reading end with a value or
// an error, and never touch memory outside. Manifests are also changed as JSON, with a right
// checksum, to reach the code after the checksum.
//
// OFSDP_FUZZ_SECONDS: how long (2); OFSDP_FUZZ_SEED. Meant for the preset `dev`.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/checkpoint/shard_file.h"
#include "importer/file/onnx_file.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace checkpoint_fuzz_test {

using Json = nlohmann::json;

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Two ranks, two tensors with one state, running statistics.
void save(const std::string& dir, const std::string& type) {
  auto store = CheckpointStore::open(dir, {});
  ASSERT_TRUE(store.ok());
  Manifest m;
  m.type = type;
  m.save = "abc-1";
  m.model = "/model.onnx";
  m.graph = "0123";
  m.world = 2;
  m.strategy = "full_shard";
  m.step = 1;
  m.optimizer = "sgd";
  m.states = {"momentum"};
  m.evaluation = SavedEvaluation{{{"loss", 0.5}, {"auc", std::nullopt}}};
  m.loss_scale = SavedLossScale{1024, 3, 1};
  m.trained = {{"a", Shape{4, 8}}, {"b", Shape{16}}};
  m.statistics = {{"mean", Shape{3}}};
  m.units = {{64, {{"a", 0, 32}, {"b", 32, 16}}}};
  const std::vector<float> values(64, 1.5f);
  const std::string folder = save_folder(dir, 1, "t");
  ASSERT_TRUE(make_folder(folder).ok());
  const std::atomic<bool> go{false};
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<SourceSlice> slices;
    for (const std::string& kind : {std::string(kParameterKind), std::string("momentum")}) {
      if (type == "local") {
        slices.push_back({{kind, "0", rank * 32, 32, 0, {}}, Shape{64}, values.data()});
      } else if (rank == 0) {
        slices.push_back({{kind, "a", 0, 30, 0, {}}, Shape{4, 8}, values.data()});
      } else {
        slices.push_back({{kind, "a", 30, 2, 0, {}}, Shape{4, 8}, values.data()});
        slices.push_back({{kind, "b", 0, 16, 0, {}}, Shape{16}, values.data()});
      }
    }
    slices.push_back({{kStatisticKind, "mean", 0, 3, 0, {}}, Shape{3}, values.data()});
    std::vector<CheckpointFile> files;
    for (const PlannedFile& planned : plan_shard_files({m.save, rank, 2}, slices)) {
      auto file = write_planned_file(folder, planned, go);
      ASSERT_TRUE(file.ok()) << file.error().message();
      files.push_back(*std::move(file));
    }
    ASSERT_TRUE(write_part(folder, rank, files).ok());
  }
  const Status committed = store->commit(folder, m);
  ASSERT_TRUE(committed.ok()) << committed.message();
}

// True when every value could be read.
bool read_all(const std::string& folder) {
  auto reader = CheckpointReader::open(folder);
  if (!reader.ok()) {
    EXPECT_EQ(reader.error().kind(), ErrorKind::kInput) << reader.error().message();
    return false;
  }
  bool good = reader->verify(0, 1).ok();
  good = reader->verify(1, 3, 2).ok() && good;
  std::vector<float> values;
  for (const NamedTensor& tensor : reader->manifest().trained) {
    const int64_t numel = tensor.shape.numel();
    if (numel > 1 << 20) continue;
    std::vector<std::string> kinds = reader->manifest().states;
    kinds.emplace_back(kParameterKind);
    for (const std::string& kind : kinds) {
      values.resize(static_cast<size_t>(numel));
      good = reader->read(kind, tensor.name, 0, values).ok() && good;
      values.resize(static_cast<size_t>(numel / 2));
      good = reader->read(kind, tensor.name, numel / 3, values).ok() && good;
    }
  }
  values.resize(3);
  for (int rank = 0; rank < 3; ++rank)
    good = reader->read_statistic("mean", rank, values).ok() && good;
  return good;
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }

  std::string bytes(std::string text) {
    const size_t changes = 1 + below(4);
    for (size_t i = 0; i < changes && !text.empty(); ++i) {
      const size_t at = below(text.size());
      switch (below(5)) {
        case 0:
          text[at] = static_cast<char>(random_());
          break;
        case 1:
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          break;
        case 2:
          text.resize(at);
          break;
        case 3:
          text.insert(at, text.substr(below(text.size()), below(40)));
          break;
        default:
          text.erase(at, below(40));
      }
    }
    return text;
  }

  // Changes one value somewhere inside.
  void json(Json& j) {
    if (j.is_structured() && !j.empty() && below(8) != 0) {
      auto at = j.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(below(j.size())));
      if (below(12) == 0) {
        j.erase(at);
      } else if (j.is_array() && below(8) == 0) {
        j.push_back(*at);
      } else {
        json(*at);
      }
      return;
    }
    const Json others[] = {nullptr,
                           true,
                           -1,
                           0,
                           1,
                           7,
                           31,
                           63,
                           64,
                           1048577,
                           INT64_MAX,
                           INT64_MIN,
                           UINT64_MAX,
                           4294967296,
                           1e300,
                           0.5,
                           "",
                           "0",
                           "1",
                           "99999999999999999999",
                           "a",
                           "b",
                           "mean",
                           "parameter",
                           "statistic",
                           "momentum",
                           "local",
                           "full",
                           "../x",
                           "rank-00000-of-00002.onnx",
                           Json::array(),
                           Json::object(),
                           Json::array({-1, 4}),
                           Json::array({4294967296, 4294967296})};
    if (j.is_number_integer() && below(2) == 0) {
      j = static_cast<int64_t>(j.get<uint64_t>() + below(9) - 4);
    } else {
      j = others[below(std::size(others))];
    }
  }

 private:
  std::mt19937 random_;
};

std::string with_checksum(Json j) {
  j.erase("crc32c");
  const std::string text = j.dump();
  j["crc32c"] = crc32c(std::as_bytes(std::span(text)));
  return j.dump();
}

class CheckpointFuzzTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Types, CheckpointFuzzTest, testing::Values("sharded", "local"));

TEST_P(CheckpointFuzzTest, ChangedBytesAreAValueOrAnError) {
  const testing_data::TempFolder temp;
  save(temp.path(), GetParam());
  const std::string folder = temp.path() + "/step-00000001";
  ASSERT_TRUE(read_all(folder));
  const std::string names[] = {"manifest.json", "rank-00000-of-00002.onnx",
                               "rank-00001-of-00002.onnx"};
  Mutator mutator(static_cast<unsigned>(setting("OFSDP_FUZZ_SEED", 1)));
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(500 * setting("OFSDP_FUZZ_SECONDS", 2));
  constexpr long kMin = 11;  // even if a round takes seconds, under an emulator
  long rounds = 0, good = 0;
  for (; rounds < kMin || std::chrono::steady_clock::now() < end; ++rounds) {
    const size_t which = mutator.below(6) < 4 ? 0 : 1 + mutator.below(2);
    const std::string path = folder + "/" + names[which];
    const std::string before = onnx_bytes::content(path);
    std::string after;
    if (which == 0 && mutator.below(5) != 0) {
      Json j = Json::parse(before);
      for (size_t i = 0; i <= mutator.below(3); ++i) mutator.json(j);
      after = j.is_object() ? with_checksum(j) : j.dump();
    } else {
      after = mutator.bytes(before);
    }
    temp.write("step-00000001/" + names[which], after);
    good += read_all(folder);
    (void)complete_checkpoints(temp.path()).ok();
    if (which != 0) (void)OnnxFile::open(path).ok();
    temp.write("step-00000001/" + names[which], before);
  }
  EXPECT_TRUE(read_all(folder));
  std::printf("%ld rounds, %ld of them still whole\n", rounds, good);
}

}  // namespace checkpoint_fuzz_test
}  // namespace ofsdp
