// The places of the steps that are not nodes: what compile (schedule.h) is made of.
//
//   place_gathers      Gather and Free, from the stretches of nodes that read a unit, moved ahead
//                      by the prefetch policy ([Note: prefetch and memory] in schedule.h)
//   place_reductions   Acquire, Accumulate, Post and what follows a Post, from the nodes that write
//                      a unit's gradients ([Note: two waits a unit])
//
//   place_joins        PostRows and JoinRows of each ofsdp.JoinRows
//                      ([Note: rows of all ranks])
//
// Pure.
#pragma once

#include "fsdp/plan/recompute.h"
#include "runtime/program/schedule.h"

namespace ofsdp::runtime {

struct StepPlaces {
  using Steps = std::vector<Step>;
  explicit StepPlaces(size_t nodes) : before(nodes + 1), after(nodes + 1) {}

  std::vector<Steps> before;  // per node, and one past the last
  std::vector<Steps> after;
  Steps tail;  // when all nodes have run
};

// A stretch of nodes, both ends inclusive, that has to do with a unit; first is -1 when there is
// none.
struct UnitNodes {
  int unit;
  int first = -1;
  int last = -1;
};

// Per unit: the first and last of nodes [begin, end) that read its parameters.
std::vector<UnitNodes> readers_of_units(const Graph& graph, const Plan& plan, int begin, int end);

void place_gathers(const Graph& graph, const Plan& plan, const CompileOptions& options,
                   StepPlaces& places);
void place_reductions(const Graph& graph, const Plan& plan, const CompileOptions& options,
                      StepPlaces& places);
void place_joins(const Graph& graph, StepPlaces& places);

}  // namespace ofsdp::runtime
