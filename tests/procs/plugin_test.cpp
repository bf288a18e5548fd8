// Plug-ins in the real command: the examples against PyTorch's trajectories, and broken plug-ins.
// The models are in tests/fixtures/plugins (make.py made them).
#include <fstream>

#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"
#include "tests/support/trajectory.h"

namespace ofsdp {
namespace plugin_test {

using ::testing::HasSubstr;

std::string example(const std::string& name) { return OFSDP_EXAMPLE_PLUGINS "/lib" + name + ".so"; }

std::string model_of(const std::string& name) { return fixture("plugins/" + name + "/model.onnx"); }

Words plugins(const Words& names) {
  Words words;
  for (const std::string& name : names) words = words + Words{"--plugin", example(name)};
  return words;
}

// The trajectory's settings.
Words settings(const std::string& optimizer, const std::string& loss = "cross_entropy") {
  const Words common = {"--loss", loss, "--no-shuffle", "--steps", "20", "--min-params", "100"};
  if (optimizer == "adamw") return common + Words{"--optimizer", "adamw", "--lr", "1e-2"};
  if (optimizer == "adafactor") {
    return common + Words{"--optimizer",    "plugin:adafactor",
                          "--lr",           "0.05",
                          "--weight-decay", "0.1",
                          "--eps",          "1e-30"};
  }
  return common + Words{"--optimizer",    "plugin:lion", "--lr",    "1e-3",
                        "--weight-decay", "0.1",         "--betas", "0.9,0.99"};
}

Words sharded() {
  return ranks(3) +
         Words{
             "--strategy", "full_shard", "--global-batch-size", "12", "--activation-checkpointing",
             "unit"};
}

struct Example {
  std::string model;
  std::string optimizer;
  Words plugins;
  std::string loss = "cross_entropy";
  std::string name = model;
};

std::vector<Example> examples() {
  return {{"rms_norm", "adamw", {"rms_norm"}},
          {"fused_swiglu", "adamw", {"fused_swiglu"}},
          {"scaled_tanh", "adamw", {"scaled_tanh"}},
          {"huber_loss", "adamw", {"huber_loss"}, "plugin:com.example.HuberLoss"},
          {"all", "lion", {"rms_norm", "fused_swiglu", "scaled_tanh", "lion"}},
          {"adafactor", "adafactor", {"rms_norm", "fused_swiglu", "scaled_tanh", "adafactor"}},
          {"scaled_tanh", "adamw", {"cuda_scaled_tanh"}, "cross_entropy", "cuda_scaled_tanh"}};
}

bool exists(const std::string& path) { return std::ifstream(path).good(); }

class PluginExampleTest : public ::testing::TestWithParam<Example> {};

// Three ranks, sharded, activations computed again; then the trained file goes on on one rank.
TEST_P(PluginExampleTest, TrainsAsPyTorchDoesAndLoadsAgain) {
  const Example& e = GetParam();
  if (!exists(example(e.plugins[0]))) GTEST_SKIP() << "built without nvcc: " << e.name;
  const onnx_bytes::Folder folder;
  const std::string trained = folder / "trained.onnx", metrics = folder / "metrics.jsonl";
  const Words common = plugins(e.plugins) + settings(e.optimizer, e.loss);
  const Finished run = Program::run(fsdp_run({model_of(e.model)}) + common + sharded() +
                                    Words{"--output", trained, "--metrics", metrics});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  expect_near(steps_of(metrics), reference("plugins/" + e.model));

  const std::string again = folder / "again.jsonl";
  const Finished next = Program::run(fsdp_run({trained}) + common +
                                     Words{"--data", fixture("plugins/" + e.model + "/data"),
                                           "--batch-size", "12", "--metrics", again});
  ASSERT_EQ(next.status, 0) << next.err;
  EXPECT_LT(losses_of(again).front(), losses_of(metrics).front());
  EXPECT_NE(Program::run(fsdp_run({trained}) + settings(e.optimizer, e.loss)).status, 0)
      << "without the plug-in";
}

INSTANTIATE_TEST_SUITE_P(All, PluginExampleTest, ::testing::ValuesIn(examples()),
                         [](const auto& info) { return info.param.name; });

// The same bits with and without recomputation, sharded or not: a plug-in's kernels are kernels.
TEST(PluginTest, OneRankAndThreeAgree) {
  const onnx_bytes::Folder folder;
  const Words common = fsdp_run({model_of("all")}) + settings("lion") +
                       plugins({"rms_norm", "fused_swiglu", "scaled_tanh", "lion"});
  const std::string one = folder / "one.jsonl";
  const Finished run = Program::run(common + Words{"--global-batch-size", "12", "--metrics", one});
  ASSERT_EQ(run.status, 0) << run.err;
  expect_near(steps_of(one), reference("plugins/all"));
}

// Norms of whole parameters over shards that cut them anywhere, in a plug-in's optimizer too.
TEST(PluginTest, StrategiesAgreeOnStepLengths) {
  for (const int world : {2, 3}) {
    std::string first;
    for (const char* strategy : {"full_shard", "shard_grad_op", "zero1", "no_shard"}) {
      const onnx_bytes::Folder folder;
      const std::string trained = folder / "trained.onnx";
      const Finished run = Program::run(
          fsdp_run({model_of("adafactor")}) + settings("adafactor") +
          plugins({"rms_norm", "fused_swiglu", "scaled_tanh", "adafactor"}) + ranks(world) +
          Words{"--strategy", strategy, "--global-batch-size", "12", "--output", trained});
      ASSERT_EQ(run.status, 0) << run.err;
      const std::string bytes = onnx_bytes::content(trained);
      if (first.empty()) first = bytes;
      EXPECT_TRUE(bytes == first) << strategy << " on " << world;
    }
    EXPECT_NE(first, onnx_bytes::content(model_of("adafactor"))) << "nothing was trained";
  }
}

// Operators that take only float32 stay in float32; the rest of the run computes in bfloat16.
TEST(PluginTest, TrainsInBfloat16) {
  const onnx_bytes::Folder folder;
  const std::string metrics = folder / "m.jsonl";
  const Finished run = Program::run(
      fsdp_run({model_of("all")}) + settings("adamw") +
      plugins({"rms_norm", "fused_swiglu", "scaled_tanh"}) +
      Words{"--global-batch-size", "12", "--param-dtype", "bfloat16", "--metrics", metrics});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto losses = losses_of(metrics);
  EXPECT_NEAR(losses.front(), reference("plugins/all").losses[0], 0.02);
  EXPECT_LT(losses.back(), losses.front());
}

TEST(PluginTest, IsFoundInTheSearchPath) {
  const Start start{.environment = {"OFSDP_PLUGIN_PATH=/nowhere:" OFSDP_EXAMPLE_PLUGINS}};
  const Finished run = Program::run(fsdp_run({"ops", "--plugin", "rms_norm"}), start);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("RmsNorm"));
  EXPECT_THAT(run.out, ::testing::Not(HasSubstr("Relu")));
  const Finished none = Program::run(fsdp_run({"ops", "--plugin", "no_such"}), start);
  EXPECT_EQ(none.status, 2);
  expect_one_line(none.err, {"--plugin no_such", "OFSDP_PLUGIN_PATH"});
}

// A folder may come from a stranger, with a library under that name.
TEST(PluginTest, TheCurrentFolderIsNotSearched) {
  const std::filesystem::path library = example("rms_norm");
  const Start start{.folder = library.parent_path().string()};
  const std::string name = library.filename().string();
  const Finished refused = Program::run(fsdp_run({"ops", "--plugin", name}), start);
  EXPECT_EQ(refused.status, 2);
  expect_one_line(refused.err, {"--plugin " + name, "OFSDP_PLUGIN_PATH", "./" + name});
  EXPECT_EQ(Program::run(fsdp_run({"ops", "--plugin", "./" + name}), start).status, 0);
  EXPECT_EQ(Program::run(fsdp_run({"check-plugin", name}), start).status, 0);
}

TEST(PluginTest, AFileNamesPlugInsBesideIt) {
  const onnx_bytes::Folder folder;
  std::filesystem::copy(example("rms_norm"), folder / "mine.so");
  folder.write("config.yaml", "plugin: [mine.so]\n");
  for (const std::string& config : {std::string("config.yaml"), folder / "config.yaml"}) {
    const Finished run =
        Program::run(fsdp_run({"ops", "--config", config}), {.folder = folder.path()});
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("RmsNorm"));
  }
}

TEST(PluginTest, ExamplesPassTheirCheck) {
  for (const char* name :
       {"rms_norm", "fused_swiglu", "scaled_tanh", "lion", "adafactor", "huber_loss"}) {
    const Finished run = Program::run(fsdp_run({"check-plugin", example(name)}));
    EXPECT_EQ(run.status, 0) << run.out << run.err;
    EXPECT_THAT(run.out, ::testing::Not(HasSubstr("WRONG"))) << name;
  }
}

TEST(PluginTest, TheOneWithCudaKernelsIsListedAndChecked) {
  const std::string library = example("cuda_scaled_tanh");
  if (!exists(library)) GTEST_SKIP() << "built without nvcc: cuda_scaled_tanh";
  const Finished table = Program::run(fsdp_run({"ops", "--plugin", library}));
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("cuda kernels: com.example.ScaledTanh (plug-in)"));
  const Finished plain = Program::run(fsdp_run({"ops", "--plugin", example("scaled_tanh")}));
  EXPECT_THAT(plain.out, ::testing::Not(HasSubstr("cuda")));
  const Finished run = Program::run(fsdp_run({"check-plugin", library}));
  EXPECT_EQ(run.status, 0) << run.out << run.err;
}

// procs.plugin_package tests the skeleton that is built outside the tree.
TEST(PluginTest, ASkeletonForWhatAModelLacks) {
  const onnx_bytes::Folder folder;
  const Words plan = fsdp_run({"plan", model_of("all"), "--make-plugin", folder / "new"});
  const Finished run = Program::run(plan + plugins({"rms_norm"}));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("a plug-in for 2 operators"));
  const std::string source = onnx_bytes::content(folder / "new/my_operators.cpp");
  for (const char* fact : {"\"SwiGlu\"", "\"ScaledTanh\"", "\"alpha\", OFSDP_FLOAT"}) {
    EXPECT_THAT(source, HasSubstr(fact));
  }
  EXPECT_THAT(source, ::testing::Not(HasSubstr("RmsNorm")));
  const Finished again = Program::run(plan);
  EXPECT_EQ(again.status, 2);
  expect_one_line(again.err, {"--make-plugin", "new or empty folder"});
  const Finished nothing =
      Program::run(fsdp_run({"plan", fixture("mlp/model.onnx"), "--make-plugin", folder / "more"}));
  EXPECT_EQ(nothing.status, 2);
  expect_one_line(nothing.err, {"--make-plugin", "lacks no operator"});
  const Finished train = Program::run(fsdp_run({model_of("all"), "--make-plugin", "x"}));
  EXPECT_EQ(train.status, 2);
  expect_one_line(train.err, {"--make-plugin", "no effect"});
}

// ---- Broken plug-ins ----

Start bad(const std::string& mode) {
  return {.environment = {"OFSDP_BAD_PLUGIN=" + mode}, .patience = 120};
}

struct Fault {
  std::string mode;
  int status;
  Words facts;
};

std::string name_of(const ::testing::TestParamInfo<Fault>& info) { return info.param.mode; }

class BadPluginTest : public ::testing::TestWithParam<Fault> {};

// One line, printed once, with one rank or with two.
TEST_P(BadPluginTest, EndsTheRunWithOneLine) {
  const Fault& fault = GetParam();
  for (const int count : {1, 2}) {
    const Finished run =
        Program::run(fsdp_run({model_of("scaled_tanh"), "--plugin"}) + Words{OFSDP_BAD_PLUGIN} +
                         settings("adamw") + Words{"--batch-size", "4"} + ranks(count),
                     bad(fault.mode));
    EXPECT_EQ(run.status, fault.status) << run.err;
    expect_one_line(run.err, fault.facts);
  }
}

std::vector<Fault> faults() {
  const std::string file = "libbad_plugin.so", node = "blocks.0.tanh",
                    op = "com.example.ScaledTanh";
  return {{"nothing", 2, {"--plugin", file, "gave nothing"}},
          {"newer", 2, {"--plugin", file, "version 3", "newer than 2"}},
          {"no_version", 2, {file, "states no version"}},
          {"empty", 2, {file, "neither an operator nor an optimizer"}},
          {"twice", 2, {file, op, "already offered by"}},
          {"built_in", 2, {file, "Relu is built in", "--plugin-override"}},
          {"own_domain", 2, {file, "the program's own"}},
          {"no_name", 2, {file, "has no name"}},
          {"no_forward", 2, {file, op, "has no forward"}},
          {"both_backwards", 2, {file, op, "expected one of them"}},
          {"half_an_optimizer", 2, {file, "half", "one of direction and step_length"}},
          {"no_backward", 2, {"model.onnx", "without a gradient", op, "blocks.0.tanh"}},
          {"no_attribute", 2, {node, op, "'beta'", "does not declare"}},
          {"opset", 2, {node, op, "opset 1 of domain com.example", "3 to any"}},
          {"infer_error", 2, {node, op, "x has the wrong colour"}},
          {"infer_nothing", 2, {node, op, "no type and shape of output 'y'"}},
          {"infer_type", 2, {node, op, "'y'", "int64", "does not declare"}},
          {"infer_changes", 1, {"after the pass", node, op, "output 0", "as the operator gives"}},
          {"unknown_operator", 2, {op, "'Hadamard'", "no known operator"}},
          {"no_such_value", 2, {op, "123456", "no value of the graph"}},
          {"forgotten", 2, {op, "no gradient of input 'x'"}},
          {"kernel_error", 1, {node, op, "the table is full", "step 3", "rank "}},
          {"kernel_throws", 1, {node, op, "threw an exception: thrown on purpose", "rank "}}};
}

INSTANTIATE_TEST_SUITE_P(All, BadPluginTest, ::testing::ValuesIn(faults()), name_of);

TEST(BadPluginFileTest, AnOlderOneWorks) {
  const Finished run =
      Program::run(fsdp_run({model_of("scaled_tanh"), "--plugin"}) + Words{OFSDP_BAD_PLUGIN} +
                       settings("adamw") + Words{"--batch-size", "12"},
                   bad("older"));
  EXPECT_EQ(run.status, 0) << run.err;
  const Finished descent =
      Program::run(fsdp_run({model_of("scaled_tanh"), "--plugin"}) + Words{OFSDP_BAD_PLUGIN} +
                       Words{"--loss", "cross_entropy", "--steps", "3", "--optimizer",
                             "plugin:descend", "--batch-size", "12"},
                   bad("older"));
  EXPECT_EQ(descent.status, 0) << descent.err;
}

TEST(BadPluginFileTest, FilesThatAreNoPlugin) {
  const ModelFolder folder;
  std::string arm = onnx_bytes::content(example("lion"));
  arm[18] = static_cast<char>(183);  // e_machine: EM_AARCH64
  arm[19] = 0;
  folder.write("libarm.so", arm);
  std::string narrow = onnx_bytes::content(example("lion"));
  narrow[4] = 1;  // EI_CLASS: 32 bits
  folder.write("libnarrow.so", narrow);
  folder.write("libtext.so",
               "not a library, but longer than the header of one would have to be....");
  folder.write("libcut.so", onnx_bytes::content(example("lion")).substr(0, 200));
  const std::vector<std::pair<std::string, Words>> all = {
      {OFSDP_COUNT_ALLOCATIONS, {"no function ofsdp_plugin_entry"}},
      {folder / "libarm.so", {"built for AArch64", "expected x86-64"}},
      {folder / "libnarrow.so", {"32 bits"}},
      {folder / "libtext.so", {"no shared library"}},
      {folder / "libcut.so", {"cannot be loaded"}},
      {folder / "libnone.so", {"cannot be opened"}}};
  for (const auto& [path, facts] : all) {
    expect_refused(folder, folder.train() + Words{"--plugin", path}, Words{path} + facts);
  }
}

TEST(BadPluginFileTest, TwoThatClaimOneName) {
  const ModelFolder folder;
  const Words both = {"--plugin", example("scaled_tanh"), "--plugin", OFSDP_BAD_PLUGIN};
  expect_refused(folder, folder.train() + both,
                 {"com.example.ScaledTanh", "libscaled_tanh.so", "libbad_plugin.so"});
  const Words twice = {"--plugin", example("lion"), "--plugin", example("lion")};
  expect_refused(folder, folder.train() + twice, {"optimizer lion", "already offered"});
}

TEST(BadPluginFileTest, AnOptimizerOrALossThatNobodyOffers) {
  const ModelFolder folder;
  const Words one = {"--plugin", example("scaled_tanh")};
  expect_refused(folder, folder.train() + one + Words{"--optimizer", "plugin:muon"},
                 {"--optimizer plugin:muon", "no --plugin offers it"});
  expect_refused(folder, folder.train() + one + Words{"--loss", "plugin:com.example.Huber"},
                 {"--loss plugin:com.example.Huber", "no --plugin offers"});
}

// ---- The planner frees the values that backward does not read ----

int64_t planned_arena(const std::string& mode, int batch) {
  const Finished run = Program::run(
      fsdp_run({"plan", model_of("scaled_tanh"), "--verbose", "--plugin"}) +
          Words{OFSDP_BAD_PLUGIN, "--loss", "cross_entropy", "--batch-size", std::to_string(batch)},
      bad(mode));
  EXPECT_EQ(run.status, 0) << run.err;
  const std::string label = "arena (activations, gathered, work)";
  const size_t at = run.out.find(label);
  if (at == std::string::npos) return -1;
  const std::string row = run.out.substr(at, run.out.find('\n', at) - at);
  return std::stoll(row.substr(row.rfind(' ')));  // the bytes, after the size for readers
}

// The same kernels with another declaration: backward reads the output, or also the input. Then the
// inputs of all three blocks, 40 wide, are kept from forward to backward.
TEST(PluginMemoryTest, WhatIsNotSavedIsFreed) {
  constexpr int kBatch = 1200;
  constexpr int64_t kInput = kBatch * 40 * sizeof(float);
  EXPECT_EQ(planned_arena("saves_input", kBatch) - planned_arena("", kBatch), 3 * kInput);
}

class CheckPluginTest : public ::testing::TestWithParam<Fault> {};

TEST_P(CheckPluginTest, FindsIt) {
  const Fault& fault = GetParam();
  const Finished run = Program::run(fsdp_run({"check-plugin", OFSDP_BAD_PLUGIN}), bad(fault.mode));
  EXPECT_EQ(run.status, fault.status) << run.out << run.err;
  const std::string& text = fault.status == 2 ? run.err : run.out;
  for (const std::string& fact : fault.facts) EXPECT_THAT(text, HasSubstr(fact));
}

std::vector<Fault> found() {
  const std::string wrong = "WRONG  com.example.ScaledTanh / small: ";
  return {{"right", 0, {"ok     com.example.ScaledTanh / small: gradient of 'x' within"}},
          {"older", 0, {"gradient of 'x' within"}},
          {"newer", 2, {"version 3"}},
          {"no_backward", 0, {"no backward"}},
          {"infer_error", 1, {wrong, "x has the wrong colour"}},
          {"infer_more", 1, {wrong, "unwritten", "output 0", "float32[5, 16]"}},
          {"infer_less", 1, {wrong, "memory behind output 0", "float32[3, 16]"}},
          {"before", 1, {wrong, "outside of its bytes", "output 0"}},
          {"scratch", 1, {wrong, "behind the scratch", "128 bytes"}},
          {"writes_input", 1, {wrong, "writes into input 0"}},
          {"wrong_gradient", 1, {wrong, "gradient of input 0 ('x')", "finite difference"}},
          {"threads", 1, {wrong, "one and two threads differ"}},
          {"two_runs", 1, {wrong, "two runs differ"}},
          {"kernel_throws", 1, {wrong, "thrown on purpose"}},
          {"unknown_operator", 1, {wrong, "'Hadamard'"}},
          {"forgotten", 1, {wrong, "no gradient of input 'x'"}}};
}

INSTANTIATE_TEST_SUITE_P(All, CheckPluginTest, ::testing::ValuesIn(found()), name_of);

// ---- A plug-in in place of a built-in operator ----

TEST(PluginOverrideTest, ReplacesTheKernel) {
  const onnx_bytes::Folder folder;
  const Words common = mlp() + Words{"--steps",           "3",
                                     "--batch-size",      "24",
                                     "--plugin",          OFSDP_BAD_PLUGIN,
                                     "--plugin-override", "--metrics"};
  const std::string plain = folder / "plain.jsonl", other = folder / "other.jsonl";
  EXPECT_EQ(
      Program::run(mlp() + Words{"--steps", "3", "--batch-size", "24", "--metrics", plain}).status,
      0);
  const Finished run = Program::run(common + Words{other}, bad("built_in"));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_NE(losses_of(plain)[0], losses_of(other)[0]) << "tanh in place of relu";
}

}  // namespace plugin_test
}  // namespace ofsdp
