// --trace on a device in host memory with a clock that ticks with each operation: every step in a
// traced update is there, on the row of its stream, in the order of the run; updates that are not
// traced replay their graphs; and no result changes.
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace device_trace_test {

enum Row { kCompute, kCommunication, kInputs, kUp, kDown, kHost };

struct Event {
  std::string name;
  int64_t update;
  double begin, end;
};

struct Trace {
  std::map<std::pair<int, int>, std::vector<Event>> rows;  // by rank and row, in order of begin
  std::map<int, std::string> names;                        // the rows' names
  Trained run;

  std::vector<std::string> of(int rank, int row, int64_t update) const {
    std::vector<std::string> found;
    const auto it = rows.find({rank, row});
    for (const Event& e : it == rows.end() ? std::vector<Event>() : it->second) {
      if (e.update == update && !e.name.starts_with("update ")) found.push_back(e.name);
    }
    return found;
  }
  std::set<int64_t> updates() const {
    std::set<int64_t> found;
    for (const auto& [row, events] : rows) {
      for (const Event& e : events) found.insert(e.update);
    }
    return found;
  }
};

Trace traced(const Words& command, const Words& more = {}, int seed = 1) {
  const testing_data::TempFolder folder;
  const std::string path = folder.path() + "/trace.json";
  Trace trace;
  trace.run = on_counting_device(command, more + Words{"--trace", path}, seed);
  EXPECT_EQ(trace.run.run.status, 0) << trace.run.run.err;
  EXPECT_EQ(trace.run.violations, std::vector<std::string>{});
  const auto json = nlohmann::json::parse(onnx_bytes::content(path));
  for (const auto& event : json.at("traceEvents")) {
    const int rank = event.at("pid"), row = event.at("tid");
    if (event.at("name") == "thread_name") trace.names[row] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts"), took = event.at("dur");
    EXPECT_GE(took, 0) << event;
    trace.rows[{rank, row}].push_back(
        {event.at("name"), event.at("args").at("update"), begin, begin + took});
  }
  for (auto& [row, events] : trace.rows) {
    std::ranges::stable_sort(events, {}, [](const Event& e) { return std::pair(e.begin, -e.end); });
  }
  return trace;
}

// One after the other; nodes lie inside an update if there are updates.
void expect_nested(const Trace& trace, bool updates = true) {
  for (const auto& [row, events] : trace.rows) {
    double update_ends = 0, ends = 0;
    for (const Event& event : events) {
      const bool update = event.name.starts_with("update ");
      EXPECT_GE(event.begin + 1e-6, update ? update_ends : ends)
          << event.name << " of update " << event.update << " on row " << row.second;
      if (updates && !update && row.second == kCompute) {
        EXPECT_LE(event.end, update_ends + 1e-6) << event.name << " behind its update";
      }
      (update ? update_ends : ends) = event.end;
    }
  }
}

Words mlp(int world, const char* steps) {
  return fsdp_run({fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--min-params", "1000",
                   "--batch-size", "7", "--eval-data", "none", "--steps", steps}) +
         ranks(world);
}

TEST(DeviceTrace, HasEveryStepOnTheRowOfItsStream) {
  const Words nodes{"node_linear",           "node_relu",
                    "node_linear_1",         "node_relu_1",
                    "node_linear_2",         "loss",
                    "node_linear_2.grad.1",  "Acquire u2 root",
                    "node_linear_2.grad.2",  "node_relu_1.grad.4",
                    "node_linear_1.grad.5",  "Acquire u1 fc2.weight",
                    "node_linear_1.grad.6",  "node_relu.grad.8",
                    "Acquire u0 fc1.weight", "node_linear.grad.9"};
  for (const int seed : {1, 2}) {
    const Trace trace = traced(mlp(1, "9"), {}, seed);
    expect_nested(trace);
    EXPECT_EQ(trace.updates(), (std::set<int64_t>{1, 2, 3, 4}));
    EXPECT_EQ(trace.names.size(), 3u);
    for (int64_t update = 1; update <= 4; ++update) {
      SCOPED_TRACE(update);
      EXPECT_EQ(trace.of(0, kCompute, update), nodes);
      EXPECT_EQ(trace.of(0, kCommunication, update),
                (Words{"ReduceUpdate u2 root", "ReduceUpdate u1 fc2.weight",
                       "ReduceUpdate u0 fc1.weight"}));
      EXPECT_EQ(trace.of(0, kInputs, update), Words{"inputs"});
    }
  }
}

TEST(DeviceTrace, ChangesNoBitAndLetsOtherUpdatesReplay) {
  const Words command = mlp(1, "120");
  const Trained plain = on_counting_device(command);
  const Trace trace = traced(command);
  expect_same_bits(plain, trace.run);
  EXPECT_EQ(trace.updates(), (std::set<int64_t>{1, 2, 3, 4, 100}));
  // The first update runs step by step without a trace too.
  EXPECT_EQ(plain.counts.at("graph_launches") - trace.run.counts.at("graph_launches"), 4);
  EXPECT_FALSE(trace.run.counts.contains("kernels_made_late"));
}

TEST(DeviceTrace, OfSeveralRanksHasTheSameOfEach) {
  const Words command =
      mlp(3, "6") + Words{"--grad-accum", "2", "--clip-grad-norm", "0.1", "--optimizer", "lamb"};
  const Trace trace = traced(command);
  expect_nested(trace);
  expect_same_bits(on_counting_device(command), trace.run);
  for (const int rank : {0, 1, 2}) {
    for (const int row : {kCompute, kCommunication, kInputs}) {
      EXPECT_EQ(trace.of(rank, row, 3), trace.of(0, row, 3)) << rank << " " << row;
      EXPECT_FALSE(trace.of(rank, row, 3).empty());
    }
    const auto steps = trace.of(rank, kCommunication, 2);
    for (const char* name : {"CheckLoss", "Clip", "Trust"}) {
      EXPECT_EQ(std::ranges::count(steps, name), name[1] == 'h' ? 2 : 1) << name;
    }
  }
}

TEST(DeviceTrace, OfAnOffloadHasItsCopiesAndTheUpdatesOfTheHost) {
  // `params`: parameters for forward and, except the last unit's, for backward; else the new ones.
  const Words gathered{"copy u0 fc1.weight", "copy u1 fc2.weight", "copy u2 root",
                       "copy u1 fc2.weight"};
  const Words landed{"copy u2 root", "copy u1 fc2.weight", "copy u0 fc1.weight"};
  const Words updated{"Update u2 root", "Update u1 fc2.weight", "Update u0 fc1.weight"};
  for (const char* what : {"params", "optimizer"}) {
    SCOPED_TRACE(what);
    const Words command = mlp(2, "6") + Words{"--cpu-offload", what};
    const Trace trace = traced(command);
    expect_nested(trace);
    expect_same_bits(on_counting_device(command), trace.run);
    const bool params = std::string(what) == "params";
    for (int64_t update = 1; update <= 4; ++update) {
      SCOPED_TRACE(update);
      EXPECT_EQ(trace.of(1, kUp, update), params ? gathered : landed);
      EXPECT_EQ(trace.of(1, kDown, update), landed);
      EXPECT_EQ(trace.of(1, kHost, update), updated);
    }
  }
}

TEST(DeviceTrace, OfAnEvaluationHasItsFirstMicroBatches) {
  const Words command =
      fsdp_run({"eval", fixture("mlp/model.onnx"), "--loss", "cross_entropy", "--batch-size", "2",
                "--nproc-per-node", "1", "--eval-data", fixture("mlp/data")});
  const Trace trace = traced(command);
  expect_nested(trace, false);
  const auto inputs = trace.rows.find({0, kInputs});
  ASSERT_NE(inputs, trace.rows.end());
  EXPECT_EQ(inputs->second.size(), 4u);
}

}  // namespace device_trace_test
}  // namespace ofsdp
