// fsdp-run demo: it learns, the printed command runs again, and it leaves other people's folders
// alone.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace demo_test {

using testing_data::TempFolder;

// The accuracies in the "eval" lines, in order.
std::vector<double> accuracies(const std::string& out) {
  std::vector<double> found;
  for (const std::string& line : lines_of(out)) {
    const size_t at = line.find("accuracy ");
    if (line.starts_with("eval ") && at != std::string::npos) {
      found.push_back(std::stod(line.substr(at + 9)));
    }
  }
  return found;
}

TEST(DemoTest, LearnsWithCommandsThatAUserCanRepeat) {
  const TempFolder folder;
  const Finished run = Program::run(fsdp_run({"demo"}), {.folder = folder.path()});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const std::vector<double> before_and_after = accuracies(run.out);
  ASSERT_GE(before_and_after.size(), 2u) << run.out;
  EXPECT_LT(before_and_after.front(), 0.25);  // ten classes
  EXPECT_GT(before_and_after.back(), 0.95);
  EXPECT_THAT(run.out, ::testing::HasSubstr("full_shard, 2 ranks"));
  EXPECT_THAT(run.out, ::testing::HasSubstr("\nnow your own model:\n"));
  EXPECT_THAT(run.out, ::testing::HasSubstr(
                           "fsdp-run doctor MODEL.onnx --data DATA --loss cross_entropy\n"));

  const std::string made = folder.path() + "/onnx-fsdp-demo";
  const std::string trained = onnx_bytes::content(made + "/trained.onnx");
  const Finished again =
      Program::run({"/bin/sh", "onnx-fsdp-demo/commands.sh"}, {.folder = folder.path()});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(accuracies(again.out), before_and_after);
  EXPECT_EQ(onnx_bytes::content(made + "/trained.onnx"), trained);
}

// The second run may replace the first run's files.
TEST(DemoTest, FolderWithAnOddNameTwice) {
  const TempFolder folder;
  const std::string odd = folder.path() + "/it's a $demo";
  std::string model;
  for (int time = 0; time < 2; ++time) {
    const Finished run = Program::run(fsdp_run({"demo", "--output-dir", odd}));
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, ::testing::HasSubstr("it'\\''s a $demo/trained.onnx'"));
    EXPECT_TRUE(time == 0 || onnx_bytes::content(odd + "/digits.onnx") == model);
    model = onnx_bytes::content(odd + "/digits.onnx");
  }
}

TEST(DemoTest, LeavesOtherFoldersAlone) {
  const TempFolder folder;
  folder.write("mine/labels.npy", "precious");
  folder.write("mine/commands.sh", "#!/bin/sh\nrm -rf /tmp/mine\n");
  const std::string file = folder.write("file", "precious");
  const std::string mine = folder.path() + "/mine";
  for (const auto& [target, found] : {std::pair<std::string, std::string>{mine, "'"},
                                      {file, "a file"},
                                      {file + "/below", "found"}}) {
    const Finished run = Program::run(fsdp_run({"demo", "--output-dir", target}));
    EXPECT_EQ(run.status, 2);
    expect_one_line(run.err, {"--output-dir", target, found});
    EXPECT_EQ(run.out, "");
  }
  EXPECT_EQ(onnx_bytes::content(mine + "/labels.npy"), "precious");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(mine), {}), 2);
}

TEST(DemoTest, RefusesOptionsOfARunAndBeingARank) {
  const TempFolder folder;
  const Start there{.folder = folder.path()};
  Finished run = Program::run(fsdp_run({"demo", "--nproc-per-node", "4"}), there);
  EXPECT_EQ(run.status, 2);
  expect_one_line(run.err, {"--nproc-per-node", "fsdp-run demo"});
  run = Program::run(fsdp_run({"demo", "model.onnx"}), there);
  EXPECT_EQ(run.status, 2);
  expect_one_line(run.err, {"fsdp-run demo", "no file", "model.onnx"});
  run =
      Program::run(fsdp_run({"demo"}),
                   {.environment = {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2",
                                    "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
                    .folder = folder.path()});
  EXPECT_EQ(run.status, 2);
  expect_one_line(run.err, {"fsdp-run demo", "Open MPI"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace demo_test
}  // namespace ofsdp
