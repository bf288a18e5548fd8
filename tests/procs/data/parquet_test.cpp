// Runs of the real program on a .parquet file: the same trained file as from .npy, on any ranks and
// threads; a plain file as --data; a resume in mid-epoch; planned memory; the messages for damage
// and for a missing library.
#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace parquet_runs_test {

using namespace onnx_bytes;

constexpr int64_t kRows = 100;

class ParquetRunsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(OFSDP_LIBRARY_DIR "/libofsdp_parquet.so")) {
      GTEST_SKIP() << "this build has no libofsdp_parquet.so";
    }
    folder_.write("t.parquet", content(fixture("parquet/table.parquet")));
    std::vector<float> x;
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        x.push_back(static_cast<float>((i * 7 + j * 3) % 23) / 8 - 1);
      }
      labels.push_back(i * i % 3);
    }
    folder_.write("data/x.npy", testing_data::npy("<f4", format_text("({}, 4)", kRows), x));
    folder_.write("data/labels.npy", testing_data::npy("<i8", format_text("({},)", kRows), labels));
    folder_.write("columns.yaml",
                  "train:\n  x: {file: t.parquet, column: [x0, x1, x2, x3]}\n"
                  "  labels: {file: t.parquet}\n");
  }

  Words train(const std::string& data) const {
    return fsdp_run({folder_.model(), "--loss", "cross_entropy", "--batch-size", "3", "--steps",
                     "20", "--seed", "3", "--data", folder_ / data});
  }

  ModelFolder folder_;
  CheckpointRuns runs_;
};

TEST_F(ParquetRunsTest, TrainsAsItsArrays) {
  for (const int count : {1, 2, 3, 4}) {
    const std::string expected = runs_.trained(train("data") + ranks(count));
    ASSERT_NE(expected, content(folder_.model()));
    for (const char* threads : {"1", "4"}) {
      for (const char* data : {"t.parquet", "columns.yaml"}) {
        const Words words = train(data) + ranks(count) + Words{"--loader-threads", threads};
        EXPECT_TRUE(runs_.trained(words) == expected)
            << data << " " << count << " ranks, " << threads << " threads";
      }
    }
  }
}

TEST_F(ParquetRunsTest, AResumedRunHasTheSameBits) {
  const std::string whole = runs_.trained(train("t.parquet"));
  const Words saving = train("t.parquet") + runs_.saving();
  runs_.trained(saving + Words{"--steps", "7", "--checkpoint-interval", "7step"});
  EXPECT_TRUE(runs_.trained(train("t.parquet") + runs_.resuming()) == whole);
}

TEST_F(ParquetRunsTest, PlannedMemoryIsTheMemoryOfTheRun) {
  runs_.trained(train("t.parquet") + Words{"--metrics", runs_ / "metrics.jsonl"});
  const auto end = rows_of(runs_ / "metrics.jsonl", "end").at(0);
  EXPECT_EQ(end.at("peak_bytes"), end.at("planned_peak_bytes"));
}

TEST_F(ParquetRunsTest, ClassesAndParts) {
  folder_.write("names.yaml",
                "train:\n  x: {file: t.parquet}\n  labels: {file: t.parquet, column: name}\n"
                "split: 0.2\nstratify: labels\n");
  runs_.trained(train("names.yaml") + ranks(2));
  EXPECT_THAT(runs_.last().out, testing::HasSubstr("classes: 0 aster, 1 iris"));
  EXPECT_EQ(content(runs_ / "classes.txt"), "aster\niris\n");
  const Finished shown = Program::run(fsdp_run({"data", folder_ / "t.parquet"}));
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, testing::HasSubstr("aster"));
}

TEST_F(ParquetRunsTest, Mistakes) {
  folder_.write("short.npy", linear_labels());
  folder_.write("d.yaml", "train: {x: {file: t.parquet}, labels: {file: short.npy}}\n");
  const auto with = [&](const std::string& data) {
    return folder_.train() + Words{"--data", folder_ / data};
  };
  expect_refused(folder_, with("d.yaml"), {"columns differ in length", "100", "12"});
  folder_.write("d.yaml",
                "train: {x: {file: t.parquet, column: ragged}, labels: {file: t.parquet}}\n");
  expect_refused(folder_, with("d.yaml"), {"t.parquet row 1", "rows differ in length", "pad_to"});
  // The values in a row group.
  std::string bytes = content(folder_ / "t.parquet");
  for (size_t i = 200; i < bytes.size() / 2; ++i) bytes[i] = '\x55';
  folder_.write("bad.parquet", bytes);
  expect_refused(folder_, with("bad.parquet"), {"bad.parquet: column 'x'", "row group 0"});
  folder_.write("cut.parquet", bytes.substr(0, bytes.size() - 9));
  expect_refused(folder_, with("cut.parquet"), {"cut.parquet: expected a parquet file"});
}

}  // namespace parquet_runs_test
}  // namespace ofsdp
