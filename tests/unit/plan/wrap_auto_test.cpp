// --wrap auto against the three policies that it chooses among, on models, ranks, networks and
// limits: within two hundredths of the fastest that fits, never above the limit. If no policy fits
// it often finds units that do. Bytes are compared with separately compiled plans.
#include <gtest/gtest.h>

#include "tests/support/namespaces.h"
#include "tests/support/planner.h"

namespace ofsdp {
namespace wrap_auto_test {

constexpr WrapPolicy kPolicies[] = {WrapPolicy::kTransformer, WrapPolicy::kSize, WrapPolicy::kNone};

// Two hosts with ranks that compute `factor` times as fast as this machine.
std::string topology(double factor) {
  return format_text(
      "hosts: 2\nranks_per_host: 4\ncompute_factor: {}\n"
      "inside: {{alpha_us: 5, beta_gbs: 100}}\nbetween: {{alpha_us: 30, beta_gbs: 10}}\n",
      factor);
}
const std::string kTopology = topology(20);

struct Place {
  int world;
  bool hosts;  // two, from kTopology; else ranks on one host
};

struct Model {
  std::string path;
  LossKind loss;
  int64_t batch;
};

std::string source(const std::string& path) { return OFSDP_SOURCE_DIR "/" + path; }

Planner planner_of(const Model& model, const Place& place, const std::string& network = kTopology) {
  Options options = plan_options(model.path, model.loss, model.batch);
  options.sharding.min_params = 1000;
  options.launch.device = DeviceChoice::kCpu;
  return Planner(options, place.world, place.hosts ? network : "", place.hosts ? 2 : 1);
}

ShardingOptions wrapped(const Planner& planner, WrapPolicy wrap, std::optional<int64_t> limit) {
  ShardingOptions sharding = planner.options().sharding;
  sharding.wrap = wrap;
  sharding.memory_limit = limit;
  return sharding;
}

struct Counts {
  int compared = 0;
  int only_with_it = 0;
};

// The first three candidates are the policies, unless two policies make the same units.
void expect_no_worse(const CompiledRun& chosen, const std::vector<size_t>& bytes, size_t limit) {
  const auto taken = std::ranges::find_if(chosen.candidates, &Candidate::chosen);
  ASSERT_NE(taken, chosen.candidates.end());
  EXPECT_EQ(taken->bytes, chosen.memory.largest_bytes());
  EXPECT_LE(taken->bytes, limit);
  EXPECT_LE(chosen.candidates.size(), kMostCandidates);
  for (size_t p = 0; p < bytes.size(); ++p) {
    const std::string flags = format_text("--wrap {}", name_of(kPolicies[p]));
    for (const Candidate& policy : chosen.candidates) {
      if (policy.flags != flags) continue;
      EXPECT_EQ(policy.bytes, bytes[p]) << flags;
      EXPECT_EQ(policy.fits, bytes[p] <= limit) << flags;
      if (!policy.fits) continue;
      EXPECT_LE(taken->seconds, 1.02 * policy.seconds) << flags;
    }
  }
}

void compare(Planner& planner, double part, const std::vector<size_t>& bytes, Counts& counts) {
  const size_t least = *std::ranges::min_element(bytes);
  std::optional<int64_t> limit;
  if (part > 0) limit = static_cast<int64_t>(part * static_cast<double>(least));
  auto found = planner.choose(wrapped(planner, WrapPolicy::kAuto, limit));
  ++counts.compared;
  const bool any_fits = !limit || static_cast<int64_t>(least) <= *limit;
  if (!found.ok()) {
    EXPECT_FALSE(any_fits) << found.error().message();
    EXPECT_EQ(found.error().kind(), ErrorKind::kInput);
    return;
  }
  const CompiledRun& chosen = **found;
  expect_no_worse(chosen, bytes, limit ? static_cast<size_t>(*limit) : SIZE_MAX);
  if (!any_fits) ++counts.only_with_it;
  const auto again = planner.compile(*chosen.chosen);
  EXPECT_EQ(again->memory.largest_bytes(), chosen.memory.largest_bytes()) << chosen.choice;
  EXPECT_EQ(again->hash, chosen.hash) << chosen.choice;
}

TEST(WrapAuto, IsNoWorseThanAnyPolicyAndFitsWhereNoneDoes) {
  const Model models[] = {
      {source("tests/fixtures/mlp/model.onnx"), LossKind::kCrossEntropy, 64},
      {source("tests/fixtures/blocks/model.onnx"), LossKind::kCrossEntropy, 8},
      {source("tests/fixtures/gpt2_tiny/model.onnx"), LossKind::kCrossEntropy, 8},
      {source("samples/gpt/gpt.onnx"), LossKind::kCrossEntropy, 4},
  };
  Counts counts;
  for (const Model& model : models) {
    for (const Place& place : {Place{1, false}, Place{4, false}, Place{8, true}}) {
      SCOPED_TRACE(format_text("{} on {} ranks", model.path, place.world));
      Planner planner = planner_of(model, place);
      std::vector<size_t> bytes;
      for (const WrapPolicy wrap : kPolicies) {
        const auto plan = planner.compile(wrapped(planner, wrap, std::nullopt));
        bytes.push_back(plan->memory.largest_bytes());
      }
      for (const double part : {0.0, 1.0, 0.97, 0.9, 0.8}) compare(planner, part, bytes, counts);
    }
  }
  EXPECT_GE(counts.compared, 40);
  EXPECT_GE(counts.only_with_it, 10);
}

// A large alpha joins units. Computing takes almost no time here, so the kernels' measured times,
// which vary with the machine's load, decide nothing.
TEST(WrapAuto, ALargeLatencyJoinsUnits) {
  const Model gpt{source("samples/gpt/gpt.onnx"), LossKind::kCrossEntropy, 4};
  Planner planner = planner_of(gpt, {8, true}, topology(1e12));
  const auto blocks = planner.compile(wrapped(planner, WrapPolicy::kTransformer, std::nullopt));
  const auto found = planner.choose(wrapped(planner, WrapPolicy::kAuto, std::nullopt));
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_LT((*found)->shards.units.size(), blocks->shards.units.size()) << (*found)->choice;
}

// Kept units are gathered once in an update, the others twice.
TEST(KeepGathered, TheLastUnitsAreNotGatheredAgain) {
  const Model blocks{source("tests/fixtures/blocks/model.onnx"), LossKind::kCrossEntropy, 8};
  Planner planner = planner_of(blocks, {8, true});
  const auto gathers = [&](int64_t kept) {
    ShardingOptions sharding = wrapped(planner, WrapPolicy::kTransformer, std::nullopt);
    sharding.keep_gathered = kept;
    const auto plan = planner.compile(sharding);
    const auto& steps = plan->programs.rbegin()->second.schedule.steps;
    const auto count = std::ranges::count(steps, StepKind::kGather, &Step::kind);
    return std::pair(static_cast<int64_t>(count), plan->memory.largest_bytes());
  };
  const auto none = gathers(0), four = gathers(4), all = gathers(1000);
  EXPECT_EQ(four.first, none.first - 4);
  EXPECT_EQ(all.first, 17) << "16 blocks and the root, once each";
  EXPECT_LE(none.second, four.second);
  EXPECT_LT(four.second, all.second);
}

}  // namespace wrap_auto_test
}  // namespace ofsdp
