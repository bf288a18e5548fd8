// Files that describe their training, on a device: ONNX Runtime's training artifacts and models
// with a training_info. The counting device gives the CPU's bits. The CUDA library's operators stay
// within the tolerance to the recorded losses and the CPU's.
#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace device_training_test {

std::string artifacts(const std::string& name) { return fixture("artifacts/" + name); }

Words train_artifacts(const std::string& folder, int world, const char* steps = "6") {
  return fsdp_run({folder, "--no-shuffle", "--eval-data", "none", "--global-batch-size", "12",
                   "--steps", steps, "--threads", "1"}) +
         ranks(world);
}

// A run's files in a folder.
struct Folder {
  Finished run;
  std::vector<nlohmann::json> rows;
  std::map<std::string, std::string> files;
};

Folder written(const Words& command, const std::string& output, const Words& environment = {}) {
  const testing_data::TempFolder folder;
  const std::string metrics = folder.path() + "/metrics";
  Folder made{Program::run(command + Words{"--metrics", metrics, "--output", output},
                           {.environment = environment}),
              {},
              {}};
  EXPECT_EQ(made.run.status, 0) << made.run.err;
  for (nlohmann::json& row : rows_of(metrics)) {
    for (const char* time : {"step_ms", "samples_per_s", "peak_bytes", "planned_peak_bytes"}) {
      row.erase(time);
    }
    if (row["kind"] == "step") made.rows.push_back(std::move(row));
  }
  for (const auto& entry : std::filesystem::directory_iterator(output)) {
    made.files[entry.path().filename()] = onnx_bytes::content(entry.path());
  }
  return made;
}

Words counting(const char* seed) {
  return {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE, std::string("COUNTING_DEVICE_SEED=") + seed};
}

void expect_same_bits(const Folder& cpu, const Folder& device) {
  EXPECT_EQ(cpu.rows, device.rows);
  EXPECT_EQ(cpu.files.size(), device.files.size());
  for (const auto& [name, bytes] : cpu.files) {
    EXPECT_TRUE(device.files.contains(name) && device.files.at(name) == bytes) << name;
  }
}

struct Case {
  const char* name;
  int world;
  Words more = {};
};

class DeviceArtifactsTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Folders, DeviceArtifactsTest,
                         testing::Values(Case{"mlp_adamw", 1}, Case{"mlp_adamw", 2},
                                         Case{"mlp_sgd", 1}, Case{"mlp_sgd", 3},
                                         Case{"operators", 1}, Case{"mnist_cnn", 1},
                                         Case{"bert_cls", 1}, Case{"bert_cls", 2},
                                         Case{"mlp_adamw", 1, {"--cpu-offload", "optimizer"}},
                                         Case{"mlp_adamw", 2, {"--cpu-offload", "params"}}),
                         [](const auto& info) {
                           return format_text(
                               "{}_on_{}{}", info.param.name, info.param.world,
                               info.param.more.empty() ? "" : "_offload_" + info.param.more.back());
                         });

// Six steps, then six from the written folder: moments and the count of steps too.
TEST_P(DeviceArtifactsTest, GiveTheBitsOfTheCpu) {
  const auto& [name, world, more] = GetParam();
  const testing_data::TempFolder folder;
  const auto twice = [&](const std::string& to, const Words& device, const Words& environment) {
    const std::string half = folder.path() + "/" + to, whole = half + "2";
    written(train_artifacts(artifacts(name), world) + device, half, environment);
    return written(
        train_artifacts(half, world) + Words{"--data", artifacts(name) + "/data"} + device, whole,
        environment);
  };
  const Folder cpu = twice("cpu", {"--device", "cpu"}, {});
  const Words cuda = Words{"--device", "cuda"} + more;
  expect_same_bits(cpu, twice("one", cuda, counting("1")));
  expect_same_bits(cpu, twice("two", cuda, counting("2")));
  expect_same_bits(cpu, twice("off", cuda + Words{"--cuda-graph", "off"}, counting("1")));
}

// ONNX Runtime's own losses.
TEST(DeviceArtifactsOperatorsTest, TheCudaKernelsGiveTheRecordedLosses) {
  for (const char* name : {"mlp_adamw", "mlp_sgd", "operators", "mnist_cnn", "bert_cls"}) {
    SCOPED_TRACE(name);
    const testing_data::TempFolder folder;
    std::ifstream recorded(artifacts(name) + "/losses.txt");
    const Folder device =
        written(train_artifacts(artifacts(name), 1) + Words{"--device", "cuda"},
                folder.path() + "/out", {"OFSDP_CUDA_LIBRARY=" OFSDP_EMULATED_DEVICE});
    EXPECT_EQ(device.rows.size(), 6u);
    for (const nlohmann::json& row : device.rows) {
      double expected = 0;
      recorded >> expected;
      EXPECT_NEAR(row["loss"], expected, 2e-5);
    }
  }
}

Words train_model(const std::string& name, int world, const Words& more = {}) {
  return fsdp_run({fixture("training_info/" + name + ".onnx"), "--data",
                   fixture("training_info/data"), "--no-shuffle", "--global-batch-size", "6",
                   "--steps", "5", "--wrap", "size", "--min-params", "8"}) +
         ranks(world) + more;
}

const std::vector<std::string> kModels = {"adam", "adagrad", "momentum", "nesterov",
                                          "sgd",  "program", "two_steps"};

struct TrainingInfoCase {
  const char* name;
  int world = 1;
  Words more = {};
};

class DeviceTrainingInfoTest : public testing::TestWithParam<TrainingInfoCase> {};

INSTANTIATE_TEST_SUITE_P(
    Runs, DeviceTrainingInfoTest,
    testing::Values(TrainingInfoCase{"one"}, TrainingInfoCase{"two", 2},
                    TrainingInfoCase{"three", 3, {"--strategy", "zero1"}},
                    TrainingInfoCase{"clip", 2, {"--clip-grad-norm", "0.01"}},
                    TrainingInfoCase{"accumulate", 1, {"--batch-size", "2"}},
                    TrainingInfoCase{"bfloat16", 2, {"--param-dtype", "bfloat16"}},
                    TrainingInfoCase{"bfloat16_alone", 1, {"--param-dtype", "bfloat16"}},
                    TrainingInfoCase{"offload", 2, {"--cpu-offload", "params"}},
                    TrainingInfoCase{
                        "float16", 1, {"--cpu-offload", "optimizer", "--param-dtype", "float16"}}),
    [](const auto& info) { return std::string(info.param.name); });

// States and scalars are in the trained file.
TEST_P(DeviceTrainingInfoTest, GivesTheBitsOfTheCpu) {
  for (const std::string& model : kModels) {
    SCOPED_TRACE(model);
    expect_bits_of_the_cpu(train_model(model, GetParam().world, GetParam().more));
  }
}

TEST(DeviceTrainingInfoPlanTest, CountsNeitherAllocateNorSynchronizeMore) {
  const auto counts = [](const char* steps) {
    Trained run = on_counting_device(train_model("adam", 1, {"--steps", steps}));
    EXPECT_EQ(run.run.status, 0) << run.run.err;
    EXPECT_EQ(run.violations, std::vector<std::string>{});
    return run.counts;
  };
  auto few = counts("10"), many = counts("30");
  for (const char* name : {"allocations", "pinned_allocations", "bytes", "events_made",
                           "synchronizations", "captures", "captured_operations"}) {
    EXPECT_EQ(few[name], many[name]) << name;
  }
  EXPECT_EQ(many["kernels_made_late"], 0);
  EXPECT_EQ(many["graph_launches"] - few["graph_launches"], 20);
  // A column and a target, the numbers, the scalars, the graph.
  EXPECT_EQ(many["operations"] - few["operations"], 20 * 5);
}

TEST(DeviceTrainingInfoPlanTest, ACheckpointOfOneDeviceGoesOnOnTheOther) {
  const testing_data::TempFolder folder;
  const Trained whole = on_cpu(train_model("adam", 1, {"--steps", "6"}));
  for (const auto& [first, second] : {std::pair{"cpu", "cuda"}, std::pair{"cuda", "cpu"}}) {
    const auto part = [&](const char* device, const Words& more) {
      return train(
          train_model("adam", 1,
                      Words{"--device", device, "--checkpoint-dir", folder.path() + "/" + first,
                            "--checkpoint-interval", "1step"} +
                          more),
          {}, {"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE});
    };
    EXPECT_EQ(part(first, {"--steps", "3"}).run.status, 0);
    const Trained rest = part(second, {"--steps", "6", "--resume", "latest"});
    EXPECT_EQ(rest.run.status, 0) << rest.run.err;
    EXPECT_TRUE(whole.file == rest.file) << first << " then " << second;
  }
}

TEST(DeviceTrainingInfoPlanTest, WhatADeviceCannotFollowIsNamedOrLeftToTheCpu) {
  const Words environment{"OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE,
                          "COUNTING_DEVICE_WITHOUT=ai.onnx.preview.training.Adam"};
  const Words command = train_model("adam", 1);
  const Trained demanded = train(command, {"--device", "cuda"}, environment);
  EXPECT_EQ(demanded.run.status, 2);
  expect_one_line(demanded.run.err,
                  {"adam.onnx", "operator ai.onnx.preview.training.Adam has no CUDA kernel"});
  const Trained chosen = train(command, {}, environment);
  EXPECT_NE(chosen.run.out.find("device: the CPU, since"), std::string::npos) << chosen.run.out;
  expect_same_bits(on_cpu(command), chosen);
  const Trained skips = on_counting_device(train_model("adam", 1, {"--param-dtype", "float16"}));
  EXPECT_EQ(skips.run.status, 2);
  expect_one_line(skips.run.err, {"adam.onnx", "training_info", "float16", "--cpu-offload"});
}

TEST(DeviceTrainingInfoOperatorsTest, TheCudaKernelsGiveTheLossesOfTheCpu) {
  for (const std::string& model : kModels) {
    SCOPED_TRACE(model);
    const Words command = train_model(model, 1, {"--clip-grad-norm", "1"});
    expect_near_losses(on_cpu(command), run_on_device(OFSDP_EMULATED_DEVICE, command), 5e-5);
  }
}

// A plug-in's optimizer updates in host memory, even if no option says so.
TEST(DevicePluginOptimizerTest, UpdatesWhatIsOffloaded) {
  const auto command = [](const char* name, int world) {
    return small_mlp(world) +
           Words{"--plugin",    OFSDP_EXAMPLE_PLUGINS "/lib" + std::string(name) + ".so",
                 "--optimizer", "plugin:" + std::string(name),
                 "--steps",     "6"};
  };
  for (const int world : {1, 2}) {
    for (const char* offload : {"none", "optimizer", "params"}) {
      expect_same_bits(on_cpu(command("lion", world)),
                       on_counting_device(command("lion", world), {"--cpu-offload", offload}));
    }
  }
  const Words of_group = small_mlp() + Words{"--plugin", OFSDP_EXAMPLE_PLUGINS "/liblion.so",
                                             "--group", "*bias:optimizer=plugin:lion"};
  expect_same_bits(on_cpu(of_group), on_counting_device(of_group));
  const Trained norms = on_counting_device(command("adafactor", 1), {"--cpu-offload", "optimizer"});
  EXPECT_EQ(norms.run.status, 2);
  expect_one_line(norms.run.err, {"plugin:adafactor", "norms", "the CPU alone"});
}

}  // namespace device_training_test
}  // namespace ofsdp
