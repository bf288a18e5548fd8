// The C sample against the command line on the same rows: the same losses to the last digit, the
// same file to the last byte.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/trajectory.h"

namespace ofsdp {
namespace library_test {

using testing_data::TempFolder;

constexpr int kSteps = 20, kBatch = 64, kPixels = 28 * 28;
const std::string kSample = OFSDP_LIBRARY_DIR "/tests/sample_library_train";
const std::string kModel = OFSDP_SOURCE_DIR "/samples/mnist/mnist.onnx";

// The rows that samples/library/train.c makes.
void write_rows(const TempFolder& folder) {
  std::vector<float> image;
  std::vector<int64_t> labels;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kBatch * kPixels; ++i) {
      image.push_back(static_cast<float>((i * 7 + step) % 256) / 255);
    }
    for (int i = 0; i < kBatch; ++i) labels.push_back((i + step) % 10);
  }
  folder.write("image.npy", testing_data::npy("<f4", "(1280, 1, 28, 28)", image));
  folder.write("labels.npy", testing_data::npy("<i8", "(1280,)", labels));
}

TEST(Library, TheSampleInCGivesTheCommandLinesBits) {
  const TempFolder folder;
  const std::string out = folder.path() + "/c.onnx", expected = folder.path() + "/run.onnx";
  const Finished sample = Program::run({kSample, kModel, out});
  ASSERT_EQ(sample.status, 0) << sample.err;

  const TempFolder data;
  write_rows(data);
  const std::string metrics = folder.path() + "/metrics.jsonl";
  const Finished run = Program::run(fsdp_run({kModel,
                                              "--loss",
                                              "nll",
                                              "--prediction",
                                              "logits",
                                              "--lr",
                                              "0.001",
                                              "--data",
                                              data.path(),
                                              "--no-shuffle",
                                              "--global-batch-size",
                                              "64",
                                              "--nproc-per-node",
                                              "1",
                                              "--steps",
                                              "20",
                                              "--metrics",
                                              metrics,
                                              "--output",
                                              expected}));
  ASSERT_EQ(run.status, 0) << run.err;
  std::ostringstream lines;
  lines.precision(9);
  int step = 0;
  for (const double loss : steps_of(metrics).losses) {
    lines << "step " << ++step << "  loss " << loss << "\n";
  }
  EXPECT_EQ(sample.out, lines.str());
  EXPECT_TRUE(onnx_bytes::content(out) == onnx_bytes::content(expected));
}

TEST(Library, TheSampleSaysWhatIsWrong) {
  const TempFolder folder;
  const Finished run =
      Program::run({kSample, folder.path() + "/none.onnx", folder.path() + "/out.onnx"});
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(run.err, "train: " + folder.path() + "/none.onnx: no such file\n");
}

}  // namespace library_test
}  // namespace ofsdp
