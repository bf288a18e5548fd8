#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/cli/config/config_files.h"
#include "runtime/cli/options/option_table.h"
#include "tests/support/namespaces.h"
#include "tests/unit/options_testing.h"

namespace ofsdp {
namespace option_files_test {

struct Batch {
  int64_t size, accum, global;
  bool operator==(const Batch&) const = default;
};

void PrintTo(const Batch& batch, std::ostream* out) {
  *out << batch.size << " x " << batch.accum << " = " << batch.global;
}

Result<BatchSizes> sizes_of(const Options& options, int ranks) {
  return resolve_batch(options.batch, options.launch.deterministic, ranks);
}

Batch settled(const Options& options, int ranks) {
  const Result<BatchSizes> sizes = sizes_of(options, ranks);
  EXPECT_TRUE(sizes.ok()) << (sizes.ok() ? "" : sizes.error().message());
  return {sizes->batch_size, sizes->grad_accum, sizes->global_batch_size};
}

std::string described(const Options& options, int ranks) {
  return describe(options, *sizes_of(options, ranks));
}

class OptionFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / format_text("ofsdp-options-{}", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(at(name)) << text;
    return at(name);
  }
  // A run's options with this text in model.yaml.
  Options beside(const std::string& yaml, Words flags = {}) const {
    write("model.yaml", yaml);
    flags.insert(flags.begin(), at("model.onnx"));
    Result<ParsedCommand> parsed = parse(flags);
    EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message());
    return parsed.ok() ? parsed->options : Options();
  }
  // The refusal for this text as --config c.yaml, without the folder's name.
  std::string config_refused(const std::string& yaml) const {
    std::string message = refusal({"m.onnx", "--config", write("c.yaml", yaml)});
    const size_t begin = message.find(folder_.string() + "/");
    return begin == std::string::npos ? message : message.erase(begin, folder_.string().size() + 1);
  }

  std::filesystem::path folder_;
};

TEST_F(OptionFiles, FlagsBeatConfigBeatsModelYamlBeatsDefaults) {
  write("model.yaml", "seed: 1\nlog_interval: 11\nepochs: 21\n");
  const std::string config = write("c.yaml", "seed: 2\nlog-interval: 12\n");
  const Options options = parse({at("model.onnx"), "--seed", "3", "--config", config})->options;
  EXPECT_EQ(options.run.seed, 3u);
  EXPECT_EQ(options.files.log_interval, 12);
  EXPECT_EQ(options.run.epochs, 21);
  EXPECT_EQ(options.config, config);
}

TEST_F(OptionFiles, ListsNullsAndSwitchesAsYamlWritesThem) {
  const Options options = beside(
      "betas: [0.8, 0.95]\nfreeze: [a, 'b*']\ntrain: c\nshuffle: false\nsteps: ~\ndrop_last: on\n"
      "no_decay: auto\nmemory_limit: 1GiB\n");
  EXPECT_EQ(options.optimizer.beta2, 0.95);
  EXPECT_EQ(options.freeze, (Words{"a", "b*"}));
  EXPECT_EQ(options.train, Words{"c"});
  EXPECT_FALSE(options.run.shuffle);
  EXPECT_FALSE(options.run.steps);
  EXPECT_TRUE(options.run.drop_last);
  EXPECT_EQ(options.sharding.memory_limit, 1 << 30);
}

TEST_F(OptionFiles, AStrongerSourceReplacesRepeatedOptions) {
  EXPECT_EQ(beside("freeze: [a, b]\n", {"--freeze", "c", "--freeze", "d"}).freeze,
            (Words{"c", "d"}));
  write("model.yaml", "freeze: [a]\n");
  EXPECT_TRUE(parse({at("model.onnx"), "--config", write("c.yaml", "freeze: []\n")})
                  ->options.freeze.empty());
}

TEST_F(OptionFiles, PathsAreRelativeToTheirFile) {
  const std::string file = write("c.yaml", "data: ./digits\noutput: /tmp/x.onnx\nmetrics: none\n");
  const Options options = parse({"m.onnx", "--config", file, "--eval-data", "here"})->options;
  EXPECT_EQ(options.run.data.path, at("digits"));
  EXPECT_EQ(options.files.output, "/tmp/x.onnx");
  EXPECT_EQ(options.files.metrics, "");
  EXPECT_EQ(options.run.eval_data.path, "here");
}

TEST_F(OptionFiles, DataMayBeAMapping) {
  const Options options =
      beside("data:\n  train:\n    input: {file: x.gz, scale: 0.5}\n  eval: {}\nseed: 4\n");
  EXPECT_EQ(options.run.data.kind, DataChoice::Kind::kInline);
  EXPECT_EQ(options.run.data.base_folder, folder_.string());
  EXPECT_EQ(options.run.data.origin, at("model.yaml"));
  EXPECT_NE(options.run.data.yaml.find("file: x.gz"), std::string::npos);
  EXPECT_EQ(beside("data: {train: {}}\n", {"--data", "d"}).run.data.kind, DataChoice::Kind::kPath);
}

TEST_F(OptionFiles, RefusalsNameFileLineAndKey) {
  EXPECT_EQ(config_refused("seed: 1\nlr: fast\n"),
            "c.yaml line 2: lr: expected a number of at least 0, found 'fast'");
  EXPECT_EQ(config_refused("stratgy: full_shard\n"),
            "c.yaml line 1: unknown key 'stratgy'; did you mean 'strategy'?");
  EXPECT_EQ(config_refused("seed: 1\nseed: 2\n"), "c.yaml line 2: seed: the key stands here twice");
  EXPECT_EQ(config_refused("batch_size: 1\nbatch-size: 2\n"),
            "c.yaml line 2: batch-size: the key stands here twice");
  EXPECT_EQ(config_refused("lr: {a: 1}\n"), "c.yaml line 1: lr: expected a value, found a mapping");
  EXPECT_EQ(config_refused("lr: 1\n---\nlr: 2\n"), "c.yaml: expected one YAML document, found 2");
  EXPECT_EQ(config_refused("{{o}},"), "c.yaml: expected one YAML document, found more");
  EXPECT_EQ(config_refused("- a\n"), "c.yaml: expected a mapping of options");
  EXPECT_EQ(config_refused("a: [1\n").find("c.yaml line 2: expected YAML: "), 0u);
  EXPECT_EQ(config_refused("cpu_offload: disk\n"),
            "c.yaml line 1: cpu_offload: expected one of none, params, optimizer, found 'disk'");
  EXPECT_EQ(config_refused("optimizer: adam\nmomentum: 0.9\n"),
            "c.yaml line 2: momentum has no effect with --optimizer adam");
}

TEST_F(OptionFiles, ConfigMustBeAFile) {
  EXPECT_EQ(refusal({"m.onnx", "--config", at("no.yaml")}),
            at("no.yaml") + ": cannot read the file: No such file or directory");
  EXPECT_EQ(refusal({"m.onnx", "--config", folder_.string()}),
            folder_.string() + ": expected a YAML file, found a folder");
  EXPECT_EQ(beside("").run.seed, 0u);
}

TEST_F(OptionFiles, TheDescriptionReadsBackAsItself) {
  Options options = options_of({"--optimizer",
                                "sgd",
                                "--momentum",
                                "0.9",
                                "--lr",
                                "0.1",
                                "--lr-schedule",
                                "step",
                                "--step-size",
                                "3",
                                "--freeze",
                                "a\"b*",
                                "--steps",
                                "30",
                                "--no-decay",
                                "auto",
                                "--loss",
                                "output:l",
                                "--global-batch-size",
                                "24",
                                "--data",
                                "/tmp/d",
                                "--metrics",
                                "/tmp/m",
                                "--memory-limit",
                                "3MiB",
                                "--no-shuffle"});
  const std::string text = described(options, 2);
  EXPECT_NE(text.find("\nmomentum: 0.9\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nfreeze: [\"a\\\"b*\"]\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nglobal_batch_size: 24  # batch_size: 12\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("betas"), std::string::npos) << text;
  Result<ParsedCommand> again = parse({"m.onnx", "--config", write("c.yaml", text)});
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(described(again->options, 2), text);
  EXPECT_EQ(settled(again->options, 4), (Batch{6, 1, 24})) << "other ranks train the same";
}

// A command in another folder reads the file.
TEST_F(OptionFiles, TheDescriptionHasWholePaths) {
  const std::string text =
      effective_config(options_of({"--teacher", "t.onnx", "--log", "csv:l.csv", "--report",
                                   "r.html", "--input", "s=s.npy", "--input", "n=zeros",
                                   "--class-weights", "cw.txt", "--loss", "cross_entropy"}),
                       1);
  const std::string here = std::filesystem::current_path().string() + "/";
  for (const char* name : {"t.onnx", "l.csv", "r.html", "s.npy", "cw.txt"}) {
    EXPECT_NE(text.find(here + name), std::string::npos) << name << "\n" << text;
  }
  EXPECT_NE(text.find("n=zeros"), std::string::npos) << text;
}

// A file that --data names has columns, even next to the model.
TEST_F(OptionFiles, AFileOfDataIsNoModelYaml) {
  write("m.onnx", "");
  const std::string beside = write("m.yaml", "train:\n  x: {file: x.npy}\n");
  const std::string model = (folder_ / "m.onnx").string();
  EXPECT_FALSE(parse({model}).ok());
  for (const char* flag : {"--data", "--eval-data"}) EXPECT_TRUE(parse({model, flag, beside}).ok());
}

TEST_F(OptionFiles, SlicesAreSaidByTheirSize) {
  const Options options = options_of({"--deterministic", "across_ranks", "--batch-size", "3"});
  const std::string text = described(options, 4);
  EXPECT_NE(text.find("\nbatch_size: 3\nglobal_batch_size: 12  # grad_accum: 1\n"),
            std::string::npos)
      << text;
  const Options again = parse({"m.onnx", "--config", write("c.yaml", text)})->options;
  EXPECT_EQ(sizes_of(again, 2)->slices, sizes_of(options, 4)->slices);
  EXPECT_EQ(sizes_of(again, 2)->batch_size, 3);
}

TEST_F(OptionFiles, TheDescriptionHoldsInlineData) {
  const Options options = beside("data:\n  train:\n    input: {file: x.gz}\nseed: 4\n");
  const std::string text = describe(options);
  Result<ParsedCommand> again = parse({"m.onnx", "--config", write("c.yaml", text)});
  ASSERT_TRUE(again.ok()) << again.error().message() << text;
  EXPECT_EQ(again->options.run.data.yaml, options.run.data.yaml);
}

std::string unsettled(const Options& options, int ranks) {
  const Result<BatchSizes> sizes = sizes_of(options, ranks);
  return sizes.ok() ? "accepted" : sizes.error().message();
}

TEST(Batch, IsTheProductWithoutAGlobalOne) {
  EXPECT_EQ(settled(options_of({}), 2), (Batch{8, 1, 16}));
  EXPECT_EQ(settled(options_of({"--batch-size", "3", "--grad-accum", "2"}), 4), (Batch{3, 2, 24}));
}

TEST(Batch, WhatIsMissingIsComputed) {
  EXPECT_EQ(settled(options_of({"--global-batch-size", "24"}), 3), (Batch{8, 1, 24}));
  EXPECT_EQ(settled(options_of({"--global-batch-size", "24", "--grad-accum", "4"}), 3),
            (Batch{2, 4, 24}));
  EXPECT_EQ(settled(options_of({"--global-batch-size", "24", "--batch-size", "4"}), 3),
            (Batch{4, 2, 24}));
}

TEST(Batch, QuotientsMustBeWholeAndThreeValuesAgree) {
  EXPECT_EQ(unsettled(options_of({"--global-batch-size", "25"}), 2),
            "--global-batch-size 25 is not a multiple of --grad-accum 1 x 2 ranks, so there is no "
            "whole --batch-size");
  EXPECT_EQ(unsettled(options_of({"--global-batch-size", "24", "--batch-size", "5"}), 1),
            "--global-batch-size 24 is not a multiple of --batch-size 5 x 1 ranks, so there is no "
            "whole --grad-accum");
  EXPECT_EQ(
      unsettled(options_of({"--global-batch-size", "24", "--batch-size", "4", "--grad-accum", "2"}),
                2),
      "--batch-size 4 x --grad-accum 2 x 2 ranks is 16, but --global-batch-size is 24");
  EXPECT_EQ(unsettled(options_of({"--batch-size", "9223372036854775807"}), 2),
            "--batch-size 9223372036854775807 x --grad-accum 1 x 2 ranks passes 2^63");
}

// The file takes the command line's other names too.
TEST_F(OptionFiles, OtherNamesAreKeys) {
  const Options options =
      beside("learning_rate: 0.5\nmax_steps: 7\nnum_epochs: 2\nbf16: true\nstrategy: ZERO1\n");
  EXPECT_EQ(options.optimizer.lr, 0.5);
  EXPECT_EQ(options.run.steps, 7);
  EXPECT_EQ(options.run.epochs, 2);
  EXPECT_EQ(options.sharding.param_dtype, DType::kBFloat16);
  EXPECT_EQ(options.sharding.strategy, Strategy::kZero1);
  EXPECT_EQ(beside("bf16: false\n").sharding.param_dtype, DType::kFloat32);
  EXPECT_EQ(beside("lr: 0.5\nlearning_rate: 0.5\n").optimizer.lr, 0.5);
  const std::string file = write("c.yaml", "lr: 0.1\nlearning_rate: 0.5\n");
  EXPECT_EQ(refusal({at("model.onnx"), "--config", file}),
            format_text("{} line 2: learning_rate contradicts {} line 1: lr: lr is 0.5 here and "
                        "0.1 there",
                        file, file));
  const std::string log = write("l.yaml", "wandb: runs\n");
  EXPECT_EQ(refusal({at("model.onnx"), "--config", log}),
            log + " line 1: unknown key 'wandb'; use --log wandb:DIR");
  const std::string near = write("n.yaml", "lr_scheduler: cosine\n");
  EXPECT_EQ(refusal({at("model.onnx"), "--config", near}),
            near + " line 1: unknown key 'lr_scheduler'; did you mean 'lr_schedule'?");
}

TEST_F(OptionFiles, AStrongerGlobalBatchOverrulesWeakerParts) {
  const std::string parts = "batch_size: 5\ngrad_accum: 3\n";
  EXPECT_EQ(settled(beside(parts), 2), (Batch{5, 3, 30}));
  EXPECT_EQ(settled(beside(parts, {"--global-batch-size", "24"}), 2), (Batch{12, 1, 24}));
  EXPECT_EQ(settled(beside(parts, {"--global-batch-size", "24", "--batch-size", "6"}), 2),
            (Batch{6, 2, 24}));
  EXPECT_EQ(settled(beside("global_batch_size: 24\n", {"--batch-size", "6"}), 2),
            (Batch{6, 2, 24}));
  const std::string file = at("model.yaml");
  EXPECT_EQ(unsettled(beside(parts + "global_batch_size: 24\n"), 2),
            format_text("{} line 1: batch_size 5 x {} line 2: grad_accum 3 x 2 ranks is 30, but "
                        "{} line 3: global_batch_size is 24",
                        file, file, file));
  EXPECT_EQ(unsettled(beside("global_batch_size: 25\n"), 2),
            file +
                " line 1: global_batch_size 25 is not a multiple of --grad-accum 1 x 2 ranks, so "
                "there is no whole --batch-size");
  write("model.yaml", parts);
  const std::string config = write("c.yaml", "global_batch_size: 24\n");
  EXPECT_EQ(settled(parse({at("model.onnx"), "--config", config})->options, 2), (Batch{12, 1, 24}));
}

TEST(Batch, MayBeSettledAgainForOtherRanks) {
  const Options options = options_of({"--global-batch-size", "24"});
  ASSERT_TRUE(sizes_of(options, 2).ok());
  EXPECT_EQ(settled(options, 4), (Batch{6, 1, 24}));
}

}  // namespace option_files_test
}  // namespace ofsdp
