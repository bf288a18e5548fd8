// `fsdp-run plan`, `--trace`, `--report` and `--plot` through the real command: the plan's
// figures equal the run's, written files parse and agree, and wrong topologies are
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/support/checkpoint_runs.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/training_runs.h"

namespace ofsdp {
namespace plan_report_test {

using Json = nlohmann::json;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Words settings(const std::string& strategy) {
  return mlp_settings() + Words{"--loss",       "cross_entropy",
                                "--strategy",   strategy,
                                "--batch-size", "5",
                                "--grad-accum", "3",
                                "--min-params", "1000",
                                "--threads",    "1"};
}

Words plan(const Words& more) {
  return fsdp_run({"plan", fixture("mlp/model.onnx"), "--json"}) + more;
}

Json planned(const Words& more) {
  const Finished run = Program::run(plan(more));
  EXPECT_EQ(run.status, 0) << run.err;
  return Json::parse(run.out);
}

Json last_row(const Words& more) {
  const testing_data::TempFolder folder;
  const Finished run = Program::run(fsdp_run({fixture("mlp/model.onnx")}) + more +
                                    Words{"--metrics", folder.path() + "/m.jsonl"});
  EXPECT_EQ(run.status, 0) << run.err;
  std::ifstream file(folder.path() + "/m.jsonl");
  std::string line, last;
  while (std::getline(file, line)) last = line;
  return Json::parse(last);
}

TEST(PlanReport, ItsMemoryIsTheRunsAndTheSharesAreTheWhole) {
  const testing_data::TempFolder folder;
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard", "zero1"}) {
    const Words run = settings(strategy) + ranks(2) + Words{"--trace", folder.path() + "/t.json"};
    const Json report = planned(run);
    const auto& memory = report.at("memory");
    EXPECT_EQ(memory.at("peak_bytes"), last_row(run).at("peak_bytes")[0]) << strategy;
    size_t sum = 0;
    for (const auto& [kind, bytes] : memory.at("at_peak").items()) sum += bytes.get<size_t>();
    EXPECT_EQ(sum, memory.at("peak_bytes").get<size_t>()) << strategy;
    EXPECT_FALSE(memory.at("peak_node").get<std::string>().empty());
    EXPECT_GT(memory.at("at_peak").at("trace"), 0);
  }
}

TEST(PlanReport, TimesOfAnUpdateAddUp) {
  const Json report = planned(settings("full_shard") + ranks(2));
  double milliseconds = 0;
  int programs = 0;
  for (const auto& program : report.at("programs")) {
    const double times = program.at("times_an_update").get<double>();
    programs += static_cast<int>(times);
    milliseconds += times * program.at("ms").get<double>();
    EXPECT_NEAR(program.at("compute_ms").get<double>() + program.at("exposed_ms").get<double>(),
                program.at("ms").get<double>(), 1e-9);
    for (const auto& step : program.at("schedule")) {
      for (const char* stream : {"compute", "communication"}) {
        if (!step.contains(stream)) continue;
        EXPECT_LE(step.at(stream).at("end_ms"), program.at("ms").get<double>() + 1e-9);
      }
    }
  }
  EXPECT_EQ(programs, 3) << "--grad-accum 3";
  EXPECT_NEAR(milliseconds, report.at("update").at("ms").get<double>(), 1e-9);
}

TEST(PlanReport, RanksThatAreNotThere) {
  const testing_data::TempFolder folder;
  std::ofstream(folder.path() + "/t.yaml") << "hosts: 2\nranks_per_host: 4\ncompute_factor: 10\n"
                                              "inside: {alpha_us: 5, beta_gbs: 100}\n"
                                              "between: {alpha_us: 20, beta_gbs: 25}\n";
  const Words where{"--world", "8", "--topology", folder.path() + "/t.yaml"};
  const Json report = planned(settings("full_shard") + where);
  EXPECT_EQ(report.at("world"), 8);
  EXPECT_EQ(report.at("machine").at("topology").at("hosts"), 2);
  for (const auto& unit : report.at("units")) {
    EXPECT_EQ(unit.at("owned_numel").get<int64_t>() * 8, unit.at("padded_numel").get<int64_t>());
  }
  const Words text = fsdp_run({"plan", fixture("mlp/model.onnx")}) + settings("full_shard") + where;
  EXPECT_THAT(Program::run(text).out, ::testing::HasSubstr("predicted for 2 hosts of 4 ranks: "));
  // One alpha of 20 us and six of 5 us for every gather, whatever the bytes.
  EXPECT_GT(report.at("update").at("communication_ms").get<double>(), 0.050);
}

TEST(PlanReport, AutoTakesWhatFitsTheLimitAndIsPredictedToBeTheFastest) {
  auto bytes = [](const Json& report) {
    return report.at("memory").at("peak_bytes").get<size_t>();
  };
  auto blocks = [](const char* strategy) {
    return fsdp_run({"plan", fixture("blocks/model.onnx"), "--json", "--data", "synthetic",
                     "--steps", "1", "--loss", "cross_entropy", "--strategy", strategy}) +
           ranks(4);
  };
  auto planned_blocks = [&](const Words& words) {
    const Finished run = Program::run(words);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out);
  };
  const size_t least = bytes(planned_blocks(blocks("full_shard")));
  for (const char* more : {"zero1", "no_shard"}) {
    ASSERT_LT(least, bytes(planned_blocks(blocks(more)))) << more;
  }
  const Words limit{"--memory-limit", std::to_string(least)};
  EXPECT_EQ(planned_blocks(blocks("auto") + limit).at("strategy"), "full_shard");

  // Between hosts with a slow link, a copy on each host beats one that all share.
  const testing_data::TempFolder folder;
  std::ofstream(folder.path() + "/t.yaml") << "hosts: 2\nranks_per_host: 4\n"
                                              "inside: {alpha_us: 1, beta_gbs: 100}\n"
                                              "between: {alpha_us: 1000, beta_gbs: 0.01}\n";
  const Words where{"--world", "8", "--topology", folder.path() + "/t.yaml"};
  const Json report = planned(settings("auto") + where);
  double fastest = 1e9;
  for (const char* strategy : {"zero1", "shard_grad_op", "full_shard", "no_shard"}) {
    const Json other = planned(settings(strategy) + where);
    fastest = std::min(fastest, other.at("update").at("communication_ms").get<double>());
  }
  EXPECT_LT(report.at("update").at("communication_ms").get<double>(), fastest);
}

// The fastest strategy that fits is taken; a strategy that does not fit has no time.
TEST(PlanReport, AutoListsTheStrategiesThatItCompared) {
  const Words words = fsdp_run({"plan", fixture("blocks/model.onnx"), "--json", "--data",
                                "synthetic", "--steps", "1", "--loss", "cross_entropy"}) +
                      ranks(4);
  const auto planned_with = [&](const Words& more) {
    return Json::parse(Program::run(words + more).out);
  };
  const Json zero1 = planned_with({"--strategy", "zero1"});
  const auto peak = zero1.at("memory").at("peak_bytes").get<size_t>();
  const Json plan = planned_with({"--strategy", "auto", "--memory-limit", std::to_string(peak)});
  const Json& all = plan.at("candidates");
  std::vector<std::string> flags;
  double fastest = 1e9, taken = 0;
  for (const Json& one : all) {
    flags.push_back(one.at("flags"));
    const double ms = one.at("ms");
    EXPECT_EQ(one.at("fits"), one.at("peak_bytes").get<size_t>() <= peak) << one;
    EXPECT_EQ(one.at("fits"), ms > 0) << one;
    if (one.at("fits")) fastest = std::min(fastest, ms);
    if (!one.at("chosen")) continue;
    taken = ms;
    EXPECT_EQ(flags.back(), "--strategy " + plan["strategy"].get<std::string>());
  }
  EXPECT_EQ(flags, (std::vector<std::string>{"--strategy zero1", "--strategy full_shard",
                                             "--strategy no_shard"}));
  EXPECT_FALSE(all.at(2).at("fits"));
  EXPECT_EQ(taken, fastest);
  EXPECT_FALSE(zero1.contains("candidates"));
}

TEST(PlanReport, AWrongTopologyIsRefused) {
  const testing_data::TempFolder folder;
  std::ofstream(folder.path() + "/t.yaml") << "ranks_per_host: 4\n"
                                              "inside: {alpha_us: 5, beta_gbs: 100}\n";
  const Words topology{"--topology", folder.path() + "/t.yaml"};
  for (const auto& [more, said] : std::map<std::string, std::string>{
           {"2", "hosts times ranks_per_host is 4, but the plan is for 2 ranks"},
           {"none", "--world: expected a whole number of at least 1, found 'none'"}}) {
    const Finished run =
        Program::run(plan(settings("full_shard") + topology + Words{"--world", more}));
    EXPECT_EQ(run.status, 2);
    EXPECT_NE(run.err.find(said), std::string::npos) << run.err;
  }
  const Finished run = Program::run(mlp() + Words{"--html", folder.path() + "/p.html"});
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("--html has no effect with fsdp-run train"), std::string::npos) << run.err;
}

TEST(PlanReport, ThePageNeedsNothingElse) {
  const testing_data::TempFolder folder;
  const std::string path = folder.path() + "/plan.html";
  const Json report = planned(settings("full_shard") + ranks(2) + Words{"--html", path});
  const std::string page = read(path);
  const std::string open = "<script type=\"application/json\" id=\"plan\">";
  const size_t begin = page.find(open);
  ASSERT_NE(begin, std::string::npos);
  const size_t data = begin + open.size(), end = page.find("</script>", data);
  const Json inside = Json::parse(page.substr(data, end - data));
  EXPECT_EQ(inside.at("memory"), report.at("memory"));
  for (const char* outside : {" src=", " href=", "@import", "fetch(", "url("}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
}

// Per rank and row, events lie one after the other or one inside the other.
TEST(Trace, ParsesAndItsEventsNest) {
  const testing_data::TempFolder folder;
  const std::string path = folder.path() + "/trace.json";
  const Finished run = Program::run(fsdp_run({fixture("mlp/model.onnx")}) + settings("full_shard") +
                                    ranks(3) + Words{"--steps", "4", "--trace", path, "--verbose"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("waiting for communication: "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("\nwaited "), std::string::npos) << run.out;
  struct Event {
    double begin, end;
  };
  std::map<std::pair<int, int>, std::vector<Event>> rows;
  std::map<std::string, int> names;
  const Json trace = Json::parse(read(path));
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts").get<double>();
    ++names[event.at("name").get<std::string>()];
    rows[{event.at("pid").get<int>(), event.at("tid").get<int>()}].push_back(
        {begin, begin + event.at("dur").get<double>()});
  }
  EXPECT_EQ(rows.size(), 6u) << "two rows a rank";
  EXPECT_EQ(names["update 4"], 3);
  EXPECT_EQ(names["end of the update"], 12);
  for (auto& [row, events] : rows) {
    std::ranges::sort(events, {}, [](const Event& e) { return std::pair(e.begin, -e.end); });
    std::vector<double> open;
    for (const Event& event : events) {
      while (!open.empty() && open.back() <= event.begin) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(event.end, open.back() + 1e-3) << row.first;
      }
      open.push_back(event.end);
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_EQ(entry.path().filename(), "trace.json") << "parts are removed";
  }
}

TEST(Trace, APathThatCannotBeIsRefusedBeforeTheRun) {
  const Finished run = Program::run(mlp() + ranks(2) + Words{"--trace", "/does/not/exist/t.json"});
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("--trace /does/not/exist/t.json: cannot be created"), std::string::npos)
      << run.err;
  EXPECT_EQ(run.out.find("epoch 1 "), std::string::npos);
}

// Without text that depends on the processor: kernel workspaces, and so offsets in the arena.
std::string without_workspaces(const std::string& text) {
  const std::regex offset("arena\\+[0-9]+"), workspace(" arena\\+\\[[0-9]+ uint8\\] w");
  return std::regex_replace(std::regex_replace(text, offset, "arena+"), workspace, "");
}

TEST(PlanReport, PrintsTheOperations) {
  const Finished run =
      Program::run(fsdp_run({"plan", fixture("mlp/model.onnx"), "--operations", "--loss",
                             "cross_entropy", "--strategy", "full_shard", "--min-params", "1000"}) +
                   ranks(2));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(without_workspaces(run.out), read(fixture("mlp/operations.txt")));
}

TEST(PlanReport, ExplainsWhichImplementationEachNodeHas) {
  const Finished run = Program::run(fsdp_run({"plan", fixture("mlp/model.onnx"), "--explain"}) +
                                    settings("no_shard"));
  ASSERT_EQ(run.status, 0) << run.err;
  const size_t begin = run.out.find("kernels:\n");
  ASSERT_NE(begin, std::string::npos) << run.out;
  // Why OpenBLAS was not taken depends on the processor.
  const std::regex reason(" \\(not openblas: [^;)]+\\)");
  EXPECT_EQ(std::regex_replace(run.out.substr(begin), reason, ""),
            read(fixture("mlp/explain.txt")));
  EXPECT_THAT(run.out, ::testing::HasSubstr("Gemm 'node_linear': onednn (not openblas: "));
}

TEST(PlanReport, ExplainsTheKernelsOfADevice) {
  const std::string library = "OFSDP_CUDA_LIBRARY=" + std::string(OFSDP_EMULATED_DEVICE);
  const Finished run = Program::run(fsdp_run({"plan", fixture("bert_tiny/model.onnx"), "--explain",
                                              "--device", "cuda", "--loss", "cross_entropy"}),
                                    {.environment = {library}});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("': cublaslt\n"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("not tensor cores: tensor cores take 16 bits,"), std::string::npos)
      << run.out;
}

TEST(RunPictures, AreDrawnAtTheEndAndGoOnWithAResumedRun) {
  const CheckpointRuns runs;
  const Words plain = checkpointed_model() + Words{"--eval-data", fixture("mlp/data")};
  const std::string without = runs.trained(plain + Words{"--steps", "4"});
  const Words drawn =
      plain + Words{"--metrics", runs / "m.jsonl", "--report", runs / "r.html", "--plot"};
  const Start ascii{.environment = {"LC_ALL=C"}};
  EXPECT_TRUE(without == runs.trained(drawn + runs.saving() + Words{"--steps", "4"}, ascii))
      << "a picture changes no bit";
  const std::string out = runs.last().out;
  EXPECT_THAT(out, testing::HasSubstr("loss by update; o evaluation\n"));
  EXPECT_THAT(out, testing::HasSubstr(runs / "r.html"));
  EXPECT_EQ(out.find('\x1b'), std::string::npos);
  const std::string page = read(runs / "r.html");
  for (const char* part : {"<dt>updates</dt><dd>4</dd>", "finished", "fsdp-run ", "--plot",
                           "batch_size:", "trained.onnx", "Evaluation: accuracy"}) {
    EXPECT_THAT(page, testing::HasSubstr(part));
  }
  runs.trained(drawn + runs.resuming() + Words{"--steps", "9"},
               {.environment = {"LC_ALL=C.UTF-8"}});
  EXPECT_THAT(runs.last().out, testing::HasSubstr("\xe2\xa0"));
  const std::string longer = read(runs / "r.html");
  EXPECT_THAT(longer, testing::HasSubstr("<dt>updates</dt><dd>9</dd>"));
  EXPECT_THAT(longer, testing::HasSubstr("resumed 1 time"));
}

}  // namespace plan_report_test
}  // namespace ofsdp
