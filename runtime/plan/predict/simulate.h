// simulate: when each step of a schedule begins and ends, given what each takes, on two streams:
// computation and communication.
//
// With overlap (devices whose network moves data while kernels run) communication begins when it
// stands next in the schedule and the stream is free; a node waits for the gathers of the units it
// reads, an Acquire for the reductions that read its slot, an update for its reduction. Updates
// fused with a reduction run after the last node. Without overlap (ranks of one host, whose one
// thread does both) every step waits for the one before.
//
// Exposed communication is the time in which the compute stream stands still; each stretch counts
// for the unit that it waits for. Pure.
#pragma once

#include "runtime/program/memory_plan.h"

namespace ofsdp::runtime {

struct StepCost {
  double compute = 0;  // seconds
  double communication = 0;
};

struct SimulationOptions {
  bool overlap = false;
  double contention = 1;  // computation during communication takes so many times longer
};

enum class Stream : uint8_t { kCompute, kCommunication };

struct SimulatedStep {
  int step = 0;  // of the schedule; ReduceUpdate has two of these
  Stream stream = Stream::kCompute;
  double begin = 0;  // seconds
  double end = 0;
};

struct Simulation {
  std::vector<SimulatedStep> steps;  // those that take time, in the order of their schedule
  double seconds = 0;
  double compute = 0;
  double communication = 0;
  double exposed = 0;
  std::vector<double> exposed_of_unit;  // the rest belongs to no unit: the norm
};

Simulation simulate(const Graph& graph, const Plan& plan, const Schedule& schedule,
                    const GradientSlots& slots, const std::vector<StepCost>& costs,
                    const SimulationOptions& options);

}  // namespace ofsdp::runtime
