// The simulation of the two streams against hand-worked figures, and the alpha-beta model for
// collectives against the formula.
#include "runtime/compile/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/graphs.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace simulate_test {

// A chain with three layers, each a unit; every node takes 2, every gather and reduction 3, every
// update 1 (seconds).
struct Chain {
  Registry registry = make_registry();
  Graph graph = testing::mlp_training_graph(registry, 4, {8, 8, 8, 2});
  Plan plan;
  Schedule schedule;
  GradientSlots slots;
  std::vector<StepCost> costs;

  explicit Chain(const CompileOptions& options = {}, Strategy strategy = Strategy::kFullShard) {
    plan = *make_plan(
        graph, {.strategy = strategy, .wrap = WrapPolicy::kSize, .min_params = 72, .world = 2});
    schedule = make_schedule(graph, plan, options);
    slots = map_gradient_slots(plan, {&schedule});
    for (const Step& step : schedule.steps) costs.push_back(cost(step.kind));
  }

  static StepCost cost(StepKind kind) {
    switch (kind) {
      case StepKind::kRun:
        return {2, 0};
      case StepKind::kGather:
      case StepKind::kReduce:
        return {0, 3};
      case StepKind::kReduceUpdate:
        return {1, 3};
      case StepKind::kUpdate:
        return {1, 0};
      default:
        return {};
    }
  }

  int count(StepKind kind) const {
    return static_cast<int>(
        std::ranges::count(schedule.steps, kind, [](const Step& step) { return step.kind; }));
  }

  Simulation simulated(bool overlap, double contention = 1) const {
    return simulate(graph, plan, schedule, slots, costs, {overlap, contention});
  }
};

TEST(Simulate, WithoutOverlapAllCommunicationIsExposed) {
  const Chain chain;
  const int messages = chain.count(StepKind::kGather) + chain.count(StepKind::kReduceUpdate);
  const int updates = chain.count(StepKind::kReduceUpdate);
  const Simulation result = chain.simulated(false);
  EXPECT_DOUBLE_EQ(result.compute, 2.0 * chain.count(StepKind::kRun) + updates);
  EXPECT_DOUBLE_EQ(result.communication, 3.0 * messages);
  EXPECT_DOUBLE_EQ(result.exposed, result.communication);
  EXPECT_DOUBLE_EQ(result.seconds, result.compute + result.communication);
  double of_units = 0;
  for (const double exposed : result.exposed_of_unit) of_units += exposed;
  EXPECT_DOUBLE_EQ(of_units, result.exposed);
}

// Nothing hides the first gather; the last reduction begins after the last node.
TEST(Simulate, WithOverlapTheEndsStayExposed) {
  const Chain chain;
  const Simulation result = chain.simulated(true);
  const Simulation serial = chain.simulated(false);
  EXPECT_DOUBLE_EQ(result.compute, serial.compute);
  EXPECT_DOUBLE_EQ(result.communication, serial.communication);
  EXPECT_DOUBLE_EQ(result.seconds, result.compute + result.exposed);
  EXPECT_LT(result.seconds, serial.seconds);
  EXPECT_GE(result.exposed, 3 + 3 - 2) << "two updates of 1 hide a part of the last reduction";
  EXPECT_DOUBLE_EQ(result.steps.front().end, 3) << "a gather comes first";
}

TEST(Simulate, PrefetchOnlyHelps) {
  CompileOptions none;
  none.prefetch.forward_prefetch = false;
  none.prefetch.backward_prefetch = BackwardPrefetch::kNone;
  EXPECT_LT(Chain().simulated(true).seconds, Chain(none).simulated(true).seconds);
  EXPECT_DOUBLE_EQ(Chain().simulated(false).seconds, Chain(none).simulated(false).seconds);
}

TEST(Simulate, NothingOfAStreamOverlapsItself) {
  for (const bool overlap : {false, true}) {
    double end[2] = {0, 0};
    for (const SimulatedStep& step : Chain().simulated(overlap).steps) {
      double& last = end[static_cast<size_t>(step.stream)];
      EXPECT_GE(step.begin, last - 1e-12);
      EXPECT_GT(step.end, step.begin);
      last = step.end;
    }
  }
}

// Two seconds of work during a gather of three, at two thirds of the speed, take three. Other work
// is not slowed.
TEST(Simulate, ContentionSlowsTheWorkBesideCommunication) {
  const Chain chain;
  const Simulation free = chain.simulated(true), crowded = chain.simulated(true, 1.5);
  EXPECT_GT(crowded.compute, free.compute);
  EXPECT_LT(crowded.compute, free.compute + 0.5 * free.communication + 1e-9);
  EXPECT_DOUBLE_EQ(chain.simulated(false, 1.5).seconds, chain.simulated(false).seconds);
}

Topology two_hosts() {
  Topology t;
  t.hosts = 2;
  t.ranks_per_host = 4;
  t.inside = {5e-6, 100e9};
  t.between = {20e-6, 25e9};
  return t;
}

TEST(Topology, RingsCostWhatTheFormulaSays) {
  const Topology t = two_hosts();
  // Four ranks on one host: 3 messages; three quarters of the bytes at 100 GB/s.
  EXPECT_DOUBLE_EQ(t.all_gather({0, 4, 1}, 8e9), 15e-6 + 0.06);
  // Eight on two hosts: one of 7 messages crosses; seven eighths of the bytes at 25 GB/s.
  EXPECT_DOUBLE_EQ(t.all_gather({0, 8, 1}, 8e9), 20e-6 + 30e-6 + 0.28);
  // One on each host: half the bytes.
  EXPECT_DOUBLE_EQ(t.all_gather({0, 2, 4}, 8e9), 20e-6 + 0.16);
  EXPECT_DOUBLE_EQ(t.all_reduce({0, 2, 4}, 8e9), 2 * (20e-6 + 0.16));
  EXPECT_EQ(t.all_gather({3, 1, 1}, 8e9), 0);
}

TEST(Topology, IsReadFromYaml) {
  const auto t = parse_topology(
      "hosts: 2\nranks_per_host: 4\ninside: {alpha_us: 5, beta_gbs: 100}\n"
      "between: {alpha_us: 20, beta_gbs: 25}\ncompute_factor: 40\noverlap: off\n",
      "t.yaml");
  ASSERT_TRUE(t.ok()) << t.error().message();
  EXPECT_EQ(t->world(), 8);
  EXPECT_DOUBLE_EQ(t->between.alpha, 20e-6);
  EXPECT_DOUBLE_EQ(t->inside.beta, 100e9);
  EXPECT_DOUBLE_EQ(t->compute_factor, 40);
  EXPECT_FALSE(t->overlap);
}

TEST(Topology, WhatIsWrongIsNamed) {
  auto refused = [](const std::string& yaml) {
    const auto t = parse_topology(yaml, "t.yaml");
    return t.ok() ? "" : t.error().message();
  };
  EXPECT_EQ(refused("hots: 2\n"), "t.yaml: unknown key 'hots'");
  EXPECT_EQ(refused("hosts: 0\n"),
            "t.yaml: hosts: expected a whole number of at least 1, found '0'");
  EXPECT_EQ(refused("hosts: 2\n"),
            "t.yaml: expected between: {alpha_us: , beta_gbs: }, found nothing");
  EXPECT_EQ(refused("ranks_per_host: 2\ninside: {alpha_us: -1, beta_gbs: 2}\n"),
            "t.yaml: inside: alpha_us: expected a number above 0, found '-1'");
  EXPECT_EQ(refused("[1]\n"), "t.yaml: expected a mapping");
}

}  // namespace simulate_test
}  // namespace ofsdp
