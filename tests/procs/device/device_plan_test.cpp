// `fsdp-run plan` for a device: bytes and events equal a run on the counting device (tests/device),
// and without a GPU it names the facts that it does not know.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace device_plan_test {

using Json = nlohmann::json;
using testing::HasSubstr;

const char* const kCounting = "OFSDP_CUDA_LIBRARY=" OFSDP_COUNTING_DEVICE;
const char* const kNone = "OFSDP_CUDA_LIBRARY=/none.so";

Words settings(int world) {
  return Words{"--loss",       "cross_entropy",
               "--min-params", "1000",
               "--batch-size", "7",
               "--epochs",     "1",
               "--threads",    "1",
               "--eval-data",  fixture("mlp/data")} +
         ranks(world);
}

Finished planned(const Words& more, const char* environment) {
  return Program::run(fsdp_run({"plan", fixture("mlp/model.onnx")}) + more,
                      {.environment = {environment}});
}

Json json_of(const Words& more, const char* environment = kCounting) {
  const Finished run = planned(more + Words{"--device", "cuda", "--json"}, environment);
  EXPECT_EQ(run.status, 0) << run.err;
  return Json::parse(run.out);
}

// The peak in a run's last row of metrics, and the counts of the device.
struct Ran {
  size_t peak = 0;
  std::map<std::string, long> counts;
};

Ran ran(const Words& more) {
  const testing_data::TempFolder folder;
  const std::string metrics = folder.path() + "/m", report = folder.path() + "/report";
  const Finished run =
      Program::run(fsdp_run({fixture("mlp/model.onnx")}) + more +
                       Words{"--device", "cuda", "--metrics", metrics},
                   {.environment = {kCounting, "COUNTING_DEVICE_REPORT=" + report}});
  EXPECT_EQ(run.status, 0) << run.err;
  Trained counted;
  add_report(std::filesystem::exists(report) ? report : report + ".0", counted);
  return {rows_of(metrics).back().at("peak_bytes")[0], counted.counts};
}

// Counts of operators in a plan from the first product on. The nodes before it put together a
// mask.
std::map<std::string, int> planned_operators(const std::string& model, const Words& device,
                                             const char* library) {
  const Finished run = Program::run(
      fsdp_run({"plan", fixture(model), "--loss", "cross_entropy", "--data", "synthetic",
                "--eval-data", "none", "--batch-size", "2", "--threads", "1", "--json"}) +
          device,
      {.environment = {library}});
  EXPECT_EQ(run.status, 0) << run.err;
  std::map<std::string, int> found;
  const Json plan = Json::parse(run.out);
  for (const Json& program : plan.at("programs")) {
    bool multiplied = false;
    for (const Json& step : program.at("schedule")) {
      const std::string op = step.value("op", "");
      multiplied |= op.find("Gemm") != std::string::npos;
      if (multiplied && !op.empty()) ++found[op];
    }
  }
  return found;
}

// Heads are read and written where products leave and want them, in forward and backward.
TEST(DevicePlan, NothingIsCopiedAroundAttention) {
  for (const char* model : {"bert_tiny/model.onnx", "gpt2_tiny/model.onnx"}) {
    for (const char* device : {"cuda", "cpu"}) {
      SCOPED_TRACE(std::string(model) + " " + device);
      const auto found = planned_operators(model, {"--device", device},
                                           "OFSDP_CUDA_LIBRARY=" OFSDP_EMULATED_DEVICE);
      const bool keeps = std::string(device) == "cuda";
      EXPECT_TRUE(found.contains(keeps ? "ofsdp.AttentionWithStatistics" : "Attention"));
      EXPECT_TRUE(found.contains("ofsdp.AttentionGrad"));
      for (const char* copy : {"Split", "Transpose", "Concat"}) {
        EXPECT_FALSE(found.contains(copy)) << copy << " " << testing::PrintToString(found);
      }
    }
  }
}

TEST(DevicePlan, ItsBytesAndEventsAreTheRuns) {
  const std::vector<Words> cases{
      settings(1), settings(1) + Words{"--grad-accum", "2", "--optimizer", "lamb"},
      settings(1) + Words{"--param-dtype", "bfloat16"},
      settings(2) + Words{"--param-dtype", "bfloat16"},
      settings(3) + Words{"--strategy", "zero1", "--clip-grad-norm", "1"}};
  for (const Words& command : cases) {
    SCOPED_TRACE(testing::PrintToString(command));
    const Json plan = json_of(command);
    const Ran run = ran(command);
    EXPECT_EQ(plan.at("memory").at("peak_bytes"), run.peak);
    size_t sum = 0;
    for (const auto& [kind, bytes] : plan.at("memory").at("at_peak").items()) {
      sum += bytes.get<size_t>();
    }
    EXPECT_EQ(sum, run.peak);
    const Json& machine = plan.at("machine");
    EXPECT_EQ(machine.at("here"), true);
    EXPECT_EQ(machine.at("device_bytes"), run.counts.at("bytes"));
    EXPECT_EQ(machine.at("pinned_bytes"), run.counts.at("pinned_bytes"));
    // Programs share events; each of the two slots has two more.
    int most = 0;
    for (const Json& program : plan.at("programs"))
      most = std::max<int>(most, program.at("events"));
    EXPECT_EQ(most, run.counts.at("events_made") - 4);
  }
}

TEST(DevicePlan, AStepHasItsStreamAndAnEventIsWaitedForBehindItsRecord) {
  const Json plan = json_of(settings(2));
  for (const Json& program : plan.at("programs")) {
    std::vector<int> recorded;
    int gathers = 0;
    for (const Json& step : program.at("schedule")) {
      if (step.at("step") == "Gather") {
        EXPECT_EQ(step.at("stream"), "communication");
        ++gathers;
      }
      if (step.at("step") == "Run") {
        EXPECT_EQ(step.at("stream"), "compute");
      }
      for (const int event : step.value("waits", std::vector<int>())) {
        EXPECT_NE(std::ranges::find(recorded, event), recorded.end()) << step;
      }
      if (step.contains("event")) recorded.push_back(step.at("event"));
    }
    EXPECT_GT(gathers, 0);
    EXPECT_GT(recorded.size(), 0u);
    EXPECT_FALSE(program.contains("ms")) << "nothing has measured it";
  }
  EXPECT_FALSE(plan.contains("update"));
  const Finished text = planned(settings(2) + Words{"--device", "cuda", "--schedule"}, kCounting);
  EXPECT_THAT(text.out, HasSubstr("device: a device that counts, in host memory\n"));
  EXPECT_THAT(text.out, HasSubstr("  [communication"));
  EXPECT_THAT(text.out, HasSubstr("no times: nothing measures GPUs yet"));
}

// A device may leave room between rows with these widths.
bool has_odd_rows(const Json& values) {
  for (const std::string text : values) {
    const size_t last = text.find_last_of("[,");
    if (last == std::string::npos) continue;
    if (std::strtoll(text.c_str() + last + 1, nullptr, 10) % 8 != 0) return true;
  }
  return false;
}

// "bfloat16[64,768]" in bytes.
size_t bytes_of(const Json& values) {
  const std::map<std::string, size_t> sizes{{"float32", 4}, {"bfloat16", 2}, {"int64", 8}};
  size_t sum = 0;
  for (const std::string text : values) {
    if (text.empty()) continue;
    const size_t bracket = text.find('[');
    size_t bytes = sizes.at(text.substr(0, bracket));
    std::istringstream axes(text.substr(bracket + 1, text.size() - bracket - 2));
    for (std::string axis; std::getline(axes, axis, ',');) bytes *= std::stoull(axis);
    sum += bytes;
  }
  return sum;
}

TEST(DevicePlan, AStepHasTheBytesOfItsOperands) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Json plan = json_of(settings(1) + Words{"--param-dtype", dtype});
    const size_t size = dtype == std::string("float32") ? 4 : 2;
    size_t numel = 0, converted = 0, updated = 0;
    for (const Json& unit : plan.at("units")) numel += unit.at("owned_numel").get<size_t>();
    const Json& programs = plan.at("programs");
    const auto update = std::find_if(programs.begin(), programs.end(), [](const Json& program) {
      return program.at("times_an_update").get<int>() > 0;
    });
    ASSERT_NE(update, programs.end());
    for (const Json& step : update->at("schedule")) {
      SCOPED_TRACE(step.dump());
      const size_t read = step.at("read_bytes"), written = step.at("written_bytes");
      if (step.at("step") == "Run") {
        const Json &inputs = step.at("inputs"), &outputs = step.at("outputs");
        EXPECT_GE(read, bytes_of(inputs));
        EXPECT_GE(written, bytes_of(outputs));
        if (!has_odd_rows(inputs)) {
          EXPECT_EQ(read, bytes_of(inputs));
        }
        if (!has_odd_rows(outputs)) {
          EXPECT_EQ(written, bytes_of(outputs));
        }
        EXPECT_GT(written, 0u);
      }
      if (step.at("step") == "Gather") converted += read + written;
      if (step.at("step") == "ReduceUpdate") updated += read + written;
    }
    // AdamW's two states and the parameter, read and written; the gradient, for the update and the
    // norm; the 16-bit copy for nodes, written with the parameter: so one rank converts nothing.
    EXPECT_EQ(updated, numel * (24 + 2 * size + (size == 2 ? size : 0)));
    EXPECT_EQ(converted, 0u);
  }
}

TEST(DevicePlan, CountsJoinedProductsByProgram) {
  for (const Json& program : json_of(settings(1)).at("programs")) {
    int joined = 0;
    for (const Json& step : program.at("schedule")) {
      joined += step.value("op", "") == "ofsdp.GemmEpilogue";
    }
    EXPECT_EQ(program.at("joined").value("epilogue", 0) > 0, joined > 0);
    if (program.at("training") == true) {
      EXPECT_GT(joined, 0);
    }
  }
}

// The environment picks which nodes join products: none, only bias gradients, all. Without it they
// are left out.
TEST(DevicePlan, JoinsTheEpiloguesThatTheEnvironmentLists) {
  const auto joined = [](const Words& environment) {
    const Finished run = Program::run(
        fsdp_run({"plan", fixture("gpt2_tiny/model.onnx"), "--loss", "cross_entropy", "--data",
                  "synthetic", "--steps", "2", "--eval-data", "none", "--device", "cuda",
                  "--json"}),
        {.environment = Words{"OFSDP_CUDA_LIBRARY=" OFSDP_EMULATED_DEVICE} + environment});
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out).at("programs").at(0).at("joined").value("epilogue", 0);
  };
  const int usual = joined({}), sums = joined({"OFSDP_EPILOGUES=bgrad"}),
            all = joined({"OFSDP_EPILOGUES=bias,gelu,bgrad,add"});
  EXPECT_EQ(joined({"OFSDP_EPILOGUES=none"}), 0);
  EXPECT_EQ(joined({"OFSDP_EPILOGUES=bias,gelu,add"}), usual);
  EXPECT_LT(usual, all);
  EXPECT_GT(sums, 0);
  EXPECT_LT(sums, all);
}

Json plan_of_gpt2(const Words& more) {
  const Finished run =
      Program::run(fsdp_run({"plan", fixture("gpt2_tiny/model.onnx"), "--loss", "cross_entropy",
                             "--data", "synthetic", "--steps", "2", "--eval-data", "none",
                             "--batch-size", "2", "--json"}) +
                       more,
                   {.environment = {kCounting}});
  EXPECT_EQ(run.status, 0) << run.err;
  return Json::parse(run.out);
}

TEST(DevicePlan, CountsAttentionThatKeepsItsStatistics) {
  const Json plan = plan_of_gpt2({"--device", "cuda"}), &program = plan.at("programs").at(0);
  int keeping = 0;
  for (const Json& step : program.at("schedule")) {
    keeping += step.value("op", "") == "ofsdp.AttentionWithStatistics";
  }
  EXPECT_GT(keeping, 0);
  EXPECT_EQ(program.at("joined").value("statistics", 0), keeping);
}

// A pre-norm model has a sum of gradients for each normalization but the last.
TEST(DevicePlan, NormalizationsTakeTheGradientsOfTheirResiduals) {
  for (const char* device : {"cuda", "cpu"}) {
    for (const char* dtype : {"float32", "bfloat16"}) {
      const Json plan = plan_of_gpt2({"--device", device, "--param-dtype", dtype});
      const Json& program = plan.at("programs").at(0);
      int norms = 0, sums = 0;
      for (const Json& step : program.at("schedule")) {
        norms += step.value("op", "") == "ofsdp.LayerNormalizationGrad";
        sums += step.value("op", "") == "Add" &&
                step.value("node", "").find("grad.") != std::string::npos;
      }
      EXPECT_GT(norms, 2);
      EXPECT_EQ(program.at("joined").value("addend", 0), norms - 1) << device << " " << dtype;
      EXPECT_EQ(sums, 0) << device << " " << dtype;
    }
  }
}

// An update writes the 16-bit copy for nodes, if a rank owns the whole parameter.
TEST(DevicePlan, NothingIsConvertedBeforeNodesWhereARankOwnsTheWhole) {
  const auto gathers = [](int world, const char* strategy) {
    const Json plan = json_of(settings(world) + Words{"--strategy", strategy, "--param-dtype",
                                                      "bfloat16", "--grad-accum", "2"});
    int count = 0;
    for (const Json& program : plan.at("programs")) {
      for (const Json& step : program.at("schedule")) count += step.at("step") == "Gather";
    }
    return count;
  };
  for (const char* strategy : {"full_shard", "zero1", "no_shard"}) {
    EXPECT_EQ(gathers(1, strategy), 0) << strategy;
  }
  EXPECT_EQ(gathers(2, "no_shard"), 0);
  EXPECT_GT(gathers(2, "full_shard"), 0);
}

TEST(DevicePlan, WithoutAGpuItSaysWhatItDoesNotKnow) {
  const Json here = json_of(settings(2)), elsewhere = json_of(settings(2), kNone);
  EXPECT_EQ(elsewhere.at("machine").at("here"), false);
  for (const char* kind : {"parameters", "gradients", "optimizer_state", "input", "in_out"}) {
    EXPECT_EQ(elsewhere.at("memory").at("at_peak").at(kind),
              here.at("memory").at("at_peak").at(kind))
        << kind;
  }
  EXPECT_EQ(elsewhere.at("memory").at("at_peak").at("workspace"), 0);
  const Finished text = planned(settings(2) + Words{"--device", "cuda", "--verbose"}, kNone);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("device: a GPU that is not here: this build has no CUDA"));
  EXPECT_THAT(text.out, HasSubstr("not known without a GPU: for which operands kernels are there"));
  const Json many = json_of(Words{"--loss", "cross_entropy", "--world", "64"}, kNone);
  EXPECT_EQ(many.at("world"), 64);
}

TEST(DevicePlan, AutoPlansForWhatIsThere) {
  const Finished cpu = planned(settings(1), kNone), device = planned(settings(1), kCounting);
  EXPECT_THAT(cpu.out, HasSubstr("predicted: "));
  EXPECT_THAT(device.out, HasSubstr("no times: nothing measures GPUs yet"));
  const testing_data::TempFolder folder;
  const Words page{"--html", folder.path() + "/plan.html"};
  EXPECT_THAT(planned(settings(1) + page, kCounting).out,
              HasSubstr("device: the CPU, since --html draws times"));
}

TEST(DevicePlan, RefusesWhatDevicesDoNotHaveInOneLine) {
  const testing_data::TempFolder folder;
  const std::string page = folder.path() + "/plan.html";
  for (const char* environment : {kCounting, kNone}) {
    const Finished html =
        planned(settings(1) + Words{"--device", "cuda", "--html", page}, environment);
    EXPECT_EQ(html.status, 2);
    EXPECT_EQ(html.err,
              "fsdp-run: --device cuda: --html draws times, which nobody has measured on GPUs\n");
    EXPECT_FALSE(std::filesystem::exists(page));
  }
}

}  // namespace device_plan_test
}  // namespace ofsdp
