// --cpu-offload on a device in host memory (tests/device/counting_device.h): masters, optimizer
// state and, with `params`, the parameters rest in pinned memory and are updated on the host.
// Losses, norms, evaluations and trained files must equal the CPU's, bit for bit, in any order of
// the streams. The device must hold the planned bytes.
#include "kernels/core/memory.h"
#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace device_offload_test {

using testing::HasSubstr;

struct Case {
  const char* name;
  Words command;
};

std::vector<Case> cases() {
  const Words bfloat16{"--param-dtype", "bfloat16"}, rounded{"--reduce-dtype", "bfloat16"};
  const Words float16{"--param-dtype", "float16"}, clip{"--clip-grad-norm", "0.1"};
  const Words whole{"--strategy", "no_shard"}, zero1{"--strategy", "zero1"};
  const Words twice{"--grad-accum", "2"}, thrice{"--grad-accum", "3"};
  const Words hybrid{"--strategy", "hybrid_shard", "--shard-size", "2"};
  return {
      {"one", small_mlp(1)},
      {"one_bfloat16", small_mlp(1) + bfloat16 + Words{"--no-decay", "auto"}},
      {"one_bfloat16_rounded", small_mlp(1) + bfloat16 + rounded + clip},
      {"one_rounded", small_mlp(1) + rounded + Words{"--optimizer", "lion"}},
      {"one_clip", small_mlp(1) + clip + Words{"--optimizer", "sgd", "--momentum", "0.9"}},
      {"one_accumulate", small_mlp(1) + thrice + Words{"--optimizer", "adadelta"}},
      {"one_accumulate_bfloat16", small_mlp(1) + thrice + bfloat16 + clip},
      {"one_whole", small_mlp(1) + whole + twice},
      {"one_zero1", small_mlp(1) + zero1 + bfloat16 + twice},
      {"one_float16", small_mlp(1) + float16 + twice},
      {"one_lamb", small_mlp(1) + bfloat16 + Words{"--optimizer", "lamb", "--no-decay", "auto"}},
      {"two_lamb", small_mlp(2) + clip + Words{"--optimizer", "lamb", "--grad-accum", "2"}},
      {"two", small_mlp(2) + Words{"--prefetch-depth", "2"}},
      {"two_bfloat16", small_mlp(2) + bfloat16 + thrice},
      {"two_whole", small_mlp(2) + whole + bfloat16 + clip},
      {"two_ignored", small_mlp(2) + Words{"--ignore", "head.*", "--backward-prefetch", "post"}},
      {"two_float16", small_mlp(2) + float16 + twice},
      {"two_frozen", small_mlp(2) + Words{"--freeze", "fc2.weight"} + bfloat16},
      {"three", small_mlp(3) + thrice + clip},
      {"three_zero1", small_mlp(3) + zero1 + rounded + twice},
      {"three_zero2", small_mlp(3) + Words{"--strategy", "shard_grad_op"} + bfloat16 + rounded},
      {"four_hybrid", small_mlp(4) + hybrid + twice + bfloat16},
      {"four_hybrid_clip", small_mlp(4) + hybrid + clip},
      {"gpt2_tiny", of_fixture("gpt2_tiny/model.onnx", 1) + bfloat16 +
                        Words{"--activation-checkpointing", "unit"}},
      {"bert_tiny", of_fixture("bert_tiny/model.onnx", 2)}};
}

Trained offloaded(const char* what, const Words& command, const Words& more = {}, int seed = 1) {
  return run_on_device(OFSDP_COUNTING_DEVICE, command, Words{"--cpu-offload", what} + more, seed);
}

void expect_same(const Trained& cpu, const Trained& device) {
  ASSERT_EQ(cpu.run.status, 0) << cpu.run.err;
  ASSERT_EQ(device.run.status, 0) << device.run.err;
  EXPECT_EQ(device.violations, std::vector<std::string>{});
  EXPECT_EQ(cpu.rows, device.rows);
  EXPECT_FALSE(cpu.file.empty());
  EXPECT_TRUE(cpu.file == device.file) << "the trained files differ";
}

class DeviceOffloadTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Runs, DeviceOffloadTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeviceOffloadTest, GivesTheBitsOfTheCpu) {
  const Trained cpu = on_cpu(GetParam().command);
  for (const char* what : {"params", "optimizer"}) {
    SCOPED_TRACE(what);
    Trained device = offloaded(what, GetParam().command);
    expect_same(cpu, device);
    EXPECT_GT(device.counts["graph_launches"], 0);
    expect_same(cpu, offloaded(what, GetParam().command, {"--cuda-graph", "off"}, 2));
  }
}

// A loss scale that is too large at first: updates are skipped, with the same scale afterwards.
TEST(DeviceOffloadScaleTest, SkippedUpdatesAreThoseOfTheCpu) {
  for (const int world : {1, 2}) {
    ModelFolder folder;
    std::vector<float> inputs(12 * 4);
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<float>(i % 7) * 300;
    folder.write("data/x.npy", testing_data::npy("<f4", "(12, 4)", inputs));
    const Words command =
        fsdp_run({folder.model(), "--loss", "cross_entropy", "--batch-size", "1", "--steps", "9",
                  "--param-dtype", "float16", "--min-params", "1"}) +
        ranks(world);
    const Trained cpu = on_cpu(command);
    EXPECT_TRUE(std::ranges::any_of(cpu.rows, [](const auto& row) {
      return row["kind"] == "step" && row["grad_norm"].is_null();
    })) << "no update was skipped";
    for (const char* what : {"params", "optimizer"}) expect_same(cpu, offloaded(what, command));
  }
}

TEST(DeviceOffloadFaultTest, ALossThatIsNanNamesTheNodeAndUpdatesNothing) {
  for (const char* accumulated : {"1", "2"}) {
    const Words command = fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--lr",
                                    "1e38", "--min-params", "1000", "--optimizer", "sgd", "--steps",
                                    "50", "--grad-accum", accumulated});
    const Trained cpu = on_cpu(command);
    EXPECT_THAT(cpu.run.err, HasSubstr("loss is NaN at step"));
    for (const char* what : {"params", "optimizer"}) {
      const Trained device = offloaded(what, command);
      EXPECT_EQ(device.run.status, 1);
      EXPECT_EQ(cpu.run.err, device.run.err);
    }
  }
}

// A NaN in sample 5, on rank 1. Parameters updated after it would be named before the node.
TEST(DeviceOffloadFaultTest, ANanOnOneRankEndsAllBeforeAnUpdate) {
  ModelFolder folder;
  std::string inputs = onnx_bytes::linear_inputs();
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(&inputs[inputs.size() - (12 - 5) * 4 * sizeof(float)], &infinity, sizeof(infinity));
  folder.write("data/x.npy", inputs);
  for (const auto& [accumulated, strategy] :
       {std::pair{"1", "full_shard"}, std::pair{"2", "full_shard"}, std::pair{"2", "no_shard"}}) {
    const Words command =
        fsdp_run({folder.model(), "--loss", "cross_entropy", "--no-shuffle", "--batch-size", "1",
                  "--grad-accum", accumulated, "--steps", "5", "--strategy", strategy,
                  "--min-params", "1", "--timeout", "10"}) +
        ranks(2);
    const Trained cpu = on_cpu(command);
    EXPECT_THAT(cpu.run.err, HasSubstr("rank 1: first made by node"));
    for (const char* what : {"params", "optimizer"}) {
      const Trained device = offloaded(what, command);
      EXPECT_EQ(device.run.status, 1);
      EXPECT_EQ(cpu.run.err, device.run.err);
    }
  }
}

// Shards are saved from pinned memory; only constants and statistics are read from the device.
TEST(DeviceOffloadCheckpointTest, GoesOnFromWhatAnotherDeviceSavedAndTheOtherWayRound) {
  const Words command = small_mlp(2) + Words{"--param-dtype", "float16"};
  const testing_data::TempFolder folder;
  const auto part = [&](const Words& how, const std::string& dir, const Words& more) {
    const Words where{"--checkpoint-dir", folder.path() + "/" + dir, "--checkpoint-interval",
                      "4step"};
    return train(command + how + where, more, {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE});
  };
  const std::map<std::string, Words> kinds = {
      {"cpu", {"--device", "cpu"}},
      {"cuda", {"--device", "cuda"}},
      {"params", {"--device", "cuda", "--cpu-offload", "params"}},
      {"optimizer", {"--device", "cuda", "--cpu-offload", "optimizer"}}};
  const Trained whole = on_cpu(command + Words{"--steps", "11"});
  for (const auto& [first, how] : kinds) {
    EXPECT_EQ(part(how, first, {"--steps", "6"}).run.status, 0);
    const std::string second = first == "params" ? "optimizer" : "params";
    const Trained rest = part(kinds.at(second), first, {"--steps", "11", "--resume", "latest"});
    EXPECT_EQ(rest.run.status, 0) << rest.run.err;
    EXPECT_TRUE(whole.file == rest.file) << first << " then " << second;
  }
  const Trained last = part(kinds.at("cpu"), "params", {"--steps", "11", "--resume", "latest"});
  EXPECT_TRUE(whole.file == last.file) << "a finished run";
}

long operations(const char* what, const Words& more) {
  const testing_data::TempFolder folder;
  const Words saves{"--checkpoint-dir", folder.path() + "/saves"};
  Trained run =
      offloaded(what, small_mlp(1) + saves + Words{"--steps", "8", "--cuda-graph", "off"}, more);
  EXPECT_EQ(run.run.status, 0) << run.run.err;
  return run.counts["operations"];
}

TEST(DeviceOffloadCheckpointTest, ASaveReadsNoShardFromTheDevice) {
  for (const char* what : {"params", "optimizer"}) {
    const long once = operations(what, {"--checkpoint-interval", "8step"});
    const long often = operations(what, {"--checkpoint-interval", "2step"});
    EXPECT_GT(often, once) << "nothing was saved";
    EXPECT_LE(often - once, 3 * 2) << "not the constants alone, once or twice a save";
  }
}

// More updates cost only copies, launches and waits: one for the upload, one for the update before,
// and one for each unit's gradient.
TEST(DeviceOffloadCountTest, ALongerRunNeitherAllocatesNorSynchronizesMore) {
  constexpr long kUnits = 3;
  const auto counts = [](const char* what, const Words& more) {
    Trained run = offloaded(what, fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy",
                                            "--min-params", "1000", "--eval-data", "none"}) +
                                      more);
    EXPECT_EQ(run.run.status, 0) << run.run.err;
    EXPECT_EQ(run.violations, std::vector<std::string>{});
    return run.counts;
  };
  for (const char* what : {"params", "optimizer"}) {
    for (const char* graph : {"on", "off"}) {
      SCOPED_TRACE(format_text("{}, graphs {}", what, graph));
      auto few = counts(what, {"--steps", "12", "--cuda-graph", graph});
      auto many = counts(what, {"--steps", "112", "--cuda-graph", graph});
      for (const char* name :
           {"allocations", "pinned_allocations", "bytes", "pinned_bytes", "events_made", "releases",
            "synchronizations", "captures", "captured_operations"}) {
        EXPECT_EQ(few[name], many[name]) << name;
      }
      EXPECT_EQ(many["kernels_made_late"], 0);
      EXPECT_EQ(many["awaits"] - few["awaits"], 100 * (2 + kUnits));
      if (std::string(graph) == "on") {
        EXPECT_EQ(many["graph_launches"] - few["graph_launches"], 100);
        const long sent = std::string(what) == "params" ? 0 : kUnits;
        EXPECT_EQ(many["operations"] - few["operations"], 100 * (4 + sent));
      }
    }
  }
}

// Ten more updates copy the reported bytes in addition to those copied without an
// offload.
TEST(DeviceOffloadTrafficTest, AnUpdateCopiesTheBytesThatWereSaid) {
  const Words bfloat16{"--param-dtype", "bfloat16"}, clip{"--clip-grad-norm", "1"};
  const std::vector<std::pair<int, Words>> runs = {
      {1, {}},
      {2, bfloat16 + Words{"--grad-accum", "3"}},
      {2, clip + bfloat16},
      {1, bfloat16 + Words{"--strategy", "no_shard", "--grad-accum", "2"}},
      {2, {"--strategy", "zero1"}}};
  for (const auto& [world, how] : runs) {
    const Words command =
        fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--data", "synthetic",
                  "--eval-data", "none", "--batch-size", "2", "--min-params", "1000"}) +
        how + ranks(world);
    const auto more = [&](const Words& offload, const char* way) {
      const auto run = [&](const char* steps) {
        return run_on_device(OFSDP_COUNTING_DEVICE, command + offload + Words{"--steps", steps});
      };
      return run("14").counts[way] - run("4").counts[way];
    };
    const long up = more({}, "bytes_up"), down = more({}, "bytes_down");
    for (const char* what : {"params", "optimizer"}) {
      SCOPED_TRACE(format_text("{} on {} ranks, {}", joined(how, " "), world, what));
      const Words offload{"--cpu-offload", what};
      const std::string said =
          offloaded(what, command + Words{"--steps", "1", "--verbose", "on"}).run.out;
      const auto number = [&](const std::string& before) {
        const size_t at = said.find(before);
        EXPECT_NE(at, std::string::npos) << said;
        return std::stol(said.substr(at + before.size()));
      };
      EXPECT_EQ(more(offload, "bytes_up") - up, 10 * world * number("an update copies "));
      EXPECT_EQ(more(offload, "bytes_down") - down, 10 * world * number(" bytes up and "));
    }
  }
}

// The last update in an epoch: one rank has fewer samples than the other, or none.
TEST(DeviceOffloadUnevenTest, SharesOfDifferentSizeGiveTheBitsOfTheCpu) {
  for (const size_t samples : {27u, 15u}) {
    ModelFolder folder;
    folder.write("data/x.npy", onnx_bytes::linear_inputs(samples));
    folder.write("data/labels.npy", onnx_bytes::linear_labels(samples));
    const Words command =
        fsdp_run({folder.model(), "--loss", "cross_entropy", "--batch-size", "7", "--epochs", "4",
                  "--min-params", "1", "--grad-accum", "2", "--clip-grad-norm", "0.1"}) +
        ranks(2);
    const Trained cpu = on_cpu(command);
    for (const char* what : {"params", "optimizer"}) expect_same(cpu, offloaded(what, command));
  }
}

TEST(DeviceOffloadFaultTest, ARankThatStandsStillEndsTheRunInOneLine) {
  Start start;
  start.environment = {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE, "COUNTING_DEVICE_STUCK=1:9"};
  for (const char* what : {"params", "optimizer"}) {
    const Finished finished =
        Program::run(fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params",
                               "1000", "--steps", "50", "--eval-data", "none", "--device", "cuda",
                               "--timeout", "1", "--cpu-offload", what}) +
                         ranks(2),
                     start);
    EXPECT_EQ(finished.status, 1);
    expect_one_line(finished.err, {"waited 1 s on its device: ", "another rank's"});
  }
}

// Layers without biases, each a unit, on random data.
void write_deep_model(const ModelFolder& folder, int layers, int64_t width) {
  onnx_bytes::SmallModel model;
  const auto numel = static_cast<size_t>(width * width);
  std::string from = "x";
  for (int l = 0; l < layers; ++l) {
    std::vector<float> weights(numel);
    for (size_t i = 0; i < numel; ++i) {
      weights[i] =
          (static_cast<float>((i * 7919 + static_cast<size_t>(l) * 31) % 1009) - 504) / 2e4f;
    }
    const std::string name = format_text("w{}", l), sum = format_text("s{}", l);
    const std::string to = l + 1 == layers ? "logits" : format_text("h{}", l);
    model.initializers.push_back(
        onnx_bytes::tensor(name, onnx_bytes::kFloat, {width, width}, onnx_bytes::raw(weights)));
    model.nodes.push_back(onnx_bytes::node("MatMul", {from, name}, {sum}, "multiply" + name));
    model.nodes.push_back(onnx_bytes::node("Relu", {sum}, {to}, "relu" + name));
    from = to;
  }
  model.inputs = {onnx_bytes::declared("x", {-1, width})};
  model.outputs = {onnx_bytes::declared("logits", {-1, width})};
  folder.write("model.onnx", model.bytes());
}

// An update's blocks go to all threads; the counting device has one separate thread.
TEST(DeviceOffloadThreadsTest, TheNumberOfThreadsChangesNoBit) {
  const ModelFolder folder;
  write_deep_model(folder, 2, 384);
  const auto trained = [&](const char* threads) {
    const Finished run =
        Program::run(fsdp_run({folder.model(),
                               "--loss",
                               "cross_entropy",
                               "--data",
                               "synthetic",
                               "--eval-data",
                               "none",
                               "--steps",
                               "3",
                               "--batch-size",
                               "4",
                               "--param-dtype",
                               "bfloat16",
                               "--no-decay",
                               "w1",
                               "--device",
                               "cuda",
                               "--cpu-offload",
                               "params",
                               "--threads",
                               threads,
                               "--output",
                               folder.output()}),
                     {.environment = {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE}});
    EXPECT_EQ(run.status, 0) << run.err;
    return onnx_bytes::content(folder.output());
  };
  const std::string one = trained("1");
  EXPECT_NE(one, onnx_bytes::content(folder.model()));
  EXPECT_TRUE(one == trained("3"));
}

// Parameters and AdamW's two states, twice the limit.
TEST(DeviceOffloadMemoryTest, AModelWhoseStatesAreTwiceTheLimitTrains) {
  const ModelFolder folder;
  constexpr int kLayers = 12, kWidth = 512;
  write_deep_model(folder, kLayers, kWidth);
  constexpr size_t kStates = size_t{3} * kLayers * kWidth * kWidth * sizeof(float);
  const Words command =
      fsdp_run({folder.model(), "--loss", "cross_entropy", "--data", "synthetic", "--eval-data",
                "none", "--steps", "3", "--batch-size", "4", "--wrap", "size", "--min-params",
                std::to_string(kWidth * kWidth)});
  const Words limit{"--memory-limit", std::to_string(kStates / 2)};
  const Trained refused = run_on_device(OFSDP_COUNTING_DEVICE, command, limit);
  EXPECT_EQ(refused.run.status, 2);
  EXPECT_THAT(refused.run.err, HasSubstr("--memory-limit"));
  EXPECT_THAT(refused.run.err, HasSubstr("--cpu-offload params ("));
  EXPECT_THAT(refused.run.err, testing::Not(HasSubstr("--cpu-offload optimizer")));
  Trained device = offloaded("params", command + Words{"--verbose", "on"}, limit);
  expect_same(on_cpu(command), device);
  EXPECT_LE(device.counts["bytes"], static_cast<long>(kStates / 2));
  // Masters, two states and the gradient for each, and the pages for the numbers.
  const Trained plain = run_on_device(OFSDP_COUNTING_DEVICE, command);
  const long pinned = device.counts["pinned_bytes"] - plain.counts.at("pinned_bytes");
  EXPECT_THAT(device.run.out,
              HasSubstr(format_text("--cpu-offload params: {} bytes a rank pinned", pinned)));
  EXPECT_EQ(pinned, static_cast<long>(kStates / 3 * 4 + kPageBytes));
}

TEST(DeviceOffloadChoiceTest, OnTheCpuItHasNoEffectAndThatIsSaid) {
  const Trained plain = on_cpu(small_mlp(1));
  const Trained asked = on_cpu(small_mlp(1) + Words{"--cpu-offload", "params"});
  expect_same(plain, asked);
  EXPECT_THAT(asked.run.out,
              HasSubstr("--cpu-offload params: no effect, since the run is on the CPU\n"));
}

TEST(DeviceOffloadChoiceTest, AConfigurationOfAnotherProgramMeansTheSame) {
  for (const auto& [file, what] : {std::pair{"accelerate/deepspeed_stage_3.yaml", "params"},
                                   std::pair{"deepspeed/stage_3_offload.json", "params"}}) {
    const Trained run =
        run_on_device(OFSDP_COUNTING_DEVICE,
                      fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--steps",
                                "2", "--batch-size", "3", "--config", fixture(file)}));
    EXPECT_EQ(run.run.status, 0) << run.run.err;
    EXPECT_THAT(run.run.out, HasSubstr(format_text("--cpu-offload {}: ", what)));
    EXPECT_THAT(run.run.out, HasSubstr(" a rank pinned on the host"));
    EXPECT_EQ(run.violations, std::vector<std::string>{});
  }
}

}  // namespace device_offload_test
}  // namespace ofsdp
