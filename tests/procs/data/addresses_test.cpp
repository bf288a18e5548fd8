// Runs of the real program on a model and data at addresses: the bits of the local files, fetched
// once for all ranks; and a missing file, a failing server, and a model with YAML at an address.
#include "tests/support/checkpoint_runs.h"
#include "tests/support/faulty_server.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace addresses_test {

using namespace onnx_bytes;

class AddressRunsTest : public testing::Test {
 protected:
  AddressRunsTest() {
    folder_.write("data.yaml",
                  "train:\n  x: {file: data/x.npy}\n  labels: {file: data/labels.npy}\n");
    cache_ = folder_ / "cache";
  }
  void SetUp() override {
    const Finished run = start({"data", server_.address("data.yaml")});
    if (run.status == 2) GTEST_SKIP() << run.err;  // no libcurl
    ASSERT_EQ(run.status, 0) << run.err;
  }

  Finished start(const Words& words) const {
    return Program::run(fsdp_run(words), {.environment = {"XDG_CACHE_HOME=" + cache_}});
  }
  Words train(const std::string& model, const std::string& data) const {
    return {model,    "--loss", "cross_entropy", "--batch-size", "2",        "--steps",       "9",
            "--seed", "3",      "--data",        data,           "--output", folder_.output()};
  }
  std::string trained(const Words& words) const {
    const Finished run = start(words);
    EXPECT_EQ(run.status, 0) << run.err;
    std::string bytes = content(folder_.output());
    std::filesystem::remove(folder_.output());
    return bytes;
  }

  ModelFolder folder_;
  FaultyServer server_{folder_.path()};
  std::string cache_;
};

TEST_F(AddressRunsTest, TrainAsTheLocalFiles) {
  const std::string expected = trained(train(folder_.model(), folder_ / "data.yaml"));
  const int before = server_.count("200 /data/x.npy");
  for (const int count : {1, 2}) {
    EXPECT_TRUE(trained(train(server_.address("model.onnx"), server_.address("data.yaml")) +
                        ranks(count)) ==
                trained(train(folder_.model(), folder_ / "data") + ranks(count)));
    // The file, and a request for bytes after the end, since this server gives no checksum.
    EXPECT_EQ(server_.count("200 /data/x.npy"), before + 2 * count) << "once for all ranks";
  }
  // Faults during the download.
  folder_.write(
      "faulty.yaml",
      format_text("train:\n  x: {{file: '{}'}}\n  labels: {{file: '{}'}}\n",
                  server_.address("data/x.npy?seed=7"), server_.address("data/labels.npy?seed=4")));
  EXPECT_TRUE(trained(train(folder_.model(), folder_ / "faulty.yaml")) == expected);
}

// A table at an address: what is printed and written names the address, not the cache.
TEST_F(AddressRunsTest, ATableIsNamedByItsAddress) {
  std::string table = "a,b,c,d,label\n";
  for (int i = 0; i < 12; ++i) table += format_text("{},{},1,{},{}\n", i, i % 5, i % 3, i % 3);
  folder_.write("t.csv", table);
  const std::string at = server_.address("t.csv?seed=3"), model = server_.address("model.onnx");
  const std::string line = format_text("x: {{file: \"{}\", column: [a, b, c, d]}}", at);
  const auto names = [&](const std::string& text, const Words& facts) {
    for (const std::string& fact : facts) EXPECT_THAT(text, testing::HasSubstr(fact));
    EXPECT_THAT(text, testing::Not(testing::HasSubstr(cache_)));
  };
  for (const Words& words : {Words{"data", at}, Words{"data", at, model, "--json"}}) {
    const Finished run = start(words);
    EXPECT_EQ(run.status, 0) << run.err;
    names(run.out, {words.size() == 2 ? "12 " : "\"inputs\"", at});
  }
  names(start({"data", at, model}).out, {line, "gets of row 0"});
  const std::string yaml = folder_ / "made.yaml";
  const Finished made = start({"prepare", at, model, "-o", yaml});
  EXPECT_EQ(made.status, 0) << made.err;
  names(made.out, {line, "to train: fsdp-run " + model + " --data " + yaml});
  const Finished here =
      Program::run(fsdp_run({"prepare", at, model}),
                   {.environment = {"XDG_CACHE_HOME=" + cache_}, .folder = folder_.path()});
  EXPECT_EQ(here.status, 0) << here.err;
  EXPECT_EQ(content(folder_ / "t.yaml"), content(yaml));
  // The file trains, and the settings of the run name the addresses.
  Words words = train(model, yaml);
  words.resize(words.size() - 2);  // without --output
  const Finished run = start(words + Words{"--run-dir", folder_ / "runs", "--run-name", "r"});
  EXPECT_EQ(run.status, 0) << run.err;
  names(content(folder_ / "runs/r/config.yaml"), {"# fsdp-run " + model + " --config"});
  // So does the advice of a run on the plain table.
  const Finished advised = start(train(folder_.model(), at) + Words{"--labels", "label"});
  EXPECT_EQ(advised.status, 2);
  names(advised.err,
        {at + ": no column 'x'", format_text("train: {{x: {{file: '{}', column: [", at)});
  const Finished none = start({"data", server_.address("none.csv")});
  EXPECT_EQ(none.status, 2);
  expect_one_line(none.err, {"none.csv", "404"});
}

TEST_F(AddressRunsTest, Mistakes) {
  const auto refused = [&](const Words& words, int status, const Words& facts) {
    const Finished run = start(words);
    EXPECT_EQ(run.status, status) << run.err;
    expect_one_line(run.err, facts);
    EXPECT_FALSE(std::filesystem::exists(folder_.output()));
  };
  refused(train(server_.address("none.onnx"), folder_ / "data"), 2, {"none.onnx", "404"});
  refused(train(folder_.model(), server_.address("none.yaml")), 2, {"--data", "none.yaml", "404"});
  refused(train(folder_.model(), "http://example.org/d.yaml"), 2, {"expected https://"});
  refused(train(folder_.model(), server_.address("data/x.npy")), 2,
          {"--data", "expected the address of a file"});
  refused(train(folder_.model(), folder_ / "data") + Words{"--checkpoint-dir", "s3://b/c"}, 2,
          {"--checkpoint-dir: expected a path, found the address 's3://b/c'"});
  folder_.write("model.yaml", format_text("data: {}\n", server_.address("data.yaml")));
  refused({folder_.model(), "--loss", "cross_entropy", "--output", folder_.output()}, 2,
          {"model.yaml", "an address is not allowed in a model's own YAML", "--config"});
  folder_.write("model.yaml", format_text("data: {{train: {{x: {{file: '{}'}}}}}}\n",
                                          server_.address("data/x.npy")));
  refused({folder_.model(), "--loss", "cross_entropy", "--output", folder_.output()}, 2,
          {"an address is not allowed in a model's own YAML"});
}

}  // namespace addresses_test
}  // namespace ofsdp
