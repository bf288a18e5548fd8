// As tests/procs/device/checked_cuda_test.cpp: more models, types, optimizers and both kinds of
// offload through the CUDA library's host code, over the runtime that checks CUDA's rules.
#include "tests/support/checked_runs.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/small_model.h"

namespace ofsdp {
namespace checked_cuda_models_test {

struct Case {
  const char* name;
  Words command;
  double allowed = 5e-5;  // for a loss
};

Words of_fixture(const char* model, const char* steps) {
  return fsdp_run({fixture(model), "--loss", "cross_entropy", "--data", "synthetic", "--eval-data",
                   "none", "--batch-size", "2", "--steps", steps}) +
         ranks(1);
}

std::vector<Case> cases() {
  const Words bfloat16{"--param-dtype", "bfloat16"}, float16{"--param-dtype", "float16"};
  const Words gpt = of_fixture("gpt2_tiny/model.onnx", "6");
  const Words bert = of_fixture("bert_tiny/model.onnx", "6");
  const Words mnist = fsdp_run({sample_model("mnist/mnist.onnx"), "--batch-size", "2",
                                "--eval-data", "none", "--data", "synthetic", "--steps", "6"}) +
                      ranks(1);
  const Words rare =
      fsdp_run({fixture("variety/sequences.onnx"), "--loss", "cross_entropy", "--data", "synthetic",
                "--eval-data", "none", "--batch-size", "2", "--steps", "6"}) +
      ranks(1);
  return {{"mlp", small_mlp(1)},
          {"mlp_lamb", small_mlp(1) + Words{"--optimizer", "lamb", "--clip-grad-norm", "0.1"}},
          {"mlp_float16", small_mlp(1) + float16 + Words{"--grad-accum", "3"}, 5e-3},
          {"mlp_whole", small_mlp(1) + Words{"--strategy", "no_shard", "--optimizer", "sgd"}},
          {"mnist_cnn", mnist},
          {"bert_tiny", bert},
          {"bert_tiny_bfloat16", bert + bfloat16, 5e-3},
          {"gpt2_tiny", gpt},
          {"gpt2_tiny_recomputed", gpt + Words{"--activation-checkpointing", "unit"}},
          {"gpt2_tiny_bfloat16", gpt + bfloat16 + Words{"--grad-accum", "2"}, 5e-3},
          {"sequences", rare}};
}

class CheckedModels : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Models, CheckedModels, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CheckedModels, KeepTheRulesWithTheLossesOfTheCpu) {
  for (const char* what : {"none", "params", "optimizer"}) {
    SCOPED_TRACE(what);
    const bool offloads = std::string(what) != "none";
    expect_rules_kept(GetParam().command, offloads ? Words{"--cpu-offload", what} : Words{},
                      GetParam().allowed);
  }
}

// A traced update is launched step by step, with timed events.
TEST(CheckedTrace, KeepsTheRules) {
  const testing_data::TempFolder folder;
  for (const Words& offload : {Words{}, Words{"--cpu-offload", "params"}}) {
    expect_rules_kept(small_mlp(1), offload + Words{"--trace", folder.path() + "/trace.json"});
  }
}

// After the first update a bias is negative, and has no root. (An overflow would not do: the node
// that turns it into a NaN depends on the order of additions.)
TEST(CheckedFault, ALossThatIsNanEndsTheRunAsOnTheCpu) {
  using namespace onnx_bytes;
  SmallModel model = linear_model();
  model.nodes = {node("MatMul", {"x", "w"}, {"products"}, "multiply"),
                 node("Sqrt", {"b"}, {"root"}, "root"),
                 node("Add", {"products", "root"}, {"logits"}, "add")};
  model.initializers[1] = tensor("b", kFloat, {3}, raw<float>({0.5f, 0.25f, 0.5f}));
  const testing_data::TempFolder folder;
  const Words command = fsdp_run({folder.write("model.onnx", model.bytes()), "--loss",
                                  "cross_entropy", "--data", "synthetic", "--batch-size", "4",
                                  "--lr", "100", "--optimizer", "sgd", "--steps", "5"}) +
                        ranks(1);
  const Trained cpu = on_cpu(command), checked = on_checked_cuda(command);
  EXPECT_EQ(checked.run.status, 1);
  EXPECT_NE(cpu.run.err.find("at step 2, rank 0: first made by node 'root' (Sqrt)"),
            std::string::npos)
      << cpu.run.err;
  EXPECT_EQ(cpu.run.err, checked.run.err);
  EXPECT_EQ(checked.violations, std::vector<std::string>{});
}

}  // namespace checked_cuda_models_test
}  // namespace ofsdp
