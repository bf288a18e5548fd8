// simulate: predicts when each step of a schedule begins and ends on two streams, computation and
// communication, from the cost of each step.
//
// With overlap (devices) a communication begins when it is next in the schedule and the stream is
// free. A node waits for the gathers of the units that it reads, Acquire for the reductions that
// read the slot, an update for its reduction. Updates fused with a reduction run after the last
// node. Without overlap (ranks of one host, where one thread does both) every step waits for the
// previous one.
//
// Exposed communication is the time in which the compute stream waits; it counts for the unit for
// which it waits.
#pragma once

#include "runtime/program/memory_plan.h"

namespace ofsdp::runtime {

struct StepCost {
  double compute = 0;  // seconds
  double communication = 0;
};

struct SimulationOptions {
  bool overlap = false;
  double contention = 1;  // factor on computation during communication
};

enum class Stream : uint8_t { kCompute, kCommunication };

struct SimulatedStep {
  int step = 0;  // in the schedule; ReduceUpdate has two entries
  Stream stream = Stream::kCompute;
  double begin = 0;  // seconds
  double end = 0;
};

struct Simulation {
  std::vector<SimulatedStep> steps;  // steps that take time, in order
  double seconds = 0;
  double compute = 0;
  double communication = 0;
  double exposed = 0;
  std::vector<double> exposed_of_unit;  // the rest (norms) belongs to no unit
};

Simulation simulate(const Graph& graph, const Plan& plan, const Schedule& schedule,
                    const GradientSlots& slots, const std::vector<StepCost>& costs,
                    const SimulationOptions& options);

}  // namespace ofsdp::runtime
