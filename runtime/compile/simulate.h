// simulate() predicts when each step of a schedule begins and ends, from the cost of each step, on
// two streams: computation and communication. A Topology describes the network and gives the costs
// of collectives (prediction.h).
//
// With overlap (devices), a communication step begins when all earlier ones have ended. A node
// waits until the units that it reads are gathered, Acquire until the gradient slot has been
// reduced, an update until the gradient is reduced. Updates fused with a reduction run after the
// last node. Without overlap (CPU ranks on one host, where one thread does both), every step waits
// for the previous one.
//
// Exposed communication is the time for which the compute stream waits for a unit.
#pragma once

#include <string>

#include "fsdp/plan/unit.h"
#include "kernels/base/status.h"
#include "runtime/compile/program/arena_map.h"

namespace ofsdp::runtime {

// Hosts, ranks per host and the links between them, as an alpha-beta model: a message of b bytes
// takes alpha + b / beta seconds. The YAML file, with defaults at the right:
//
//   hosts: 4
//   ranks_per_host: 8
//   inside:  {alpha_us: 3.4, beta_gbs: 370}   # between two ranks on a host; us, 1e9 bytes per s
//   between: {alpha_us: 14, beta_gbs: 50}     # between two hosts, per rank
//   compute_factor: 40                        # speed relative to this machine; 1
//   overlap: on                               # communication during computation; on
//   contention: 1.3                           # slows computation during communication; 1
//
// Collectives are rings: n - 1 messages one after the other, hosts - 1 of them between hosts, and
// (n - 1)/n of the bytes pass through the slowest link; an all-reduce is two rings. Ranks are
// numbered host by host (Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
// Operations in MPICH", 2005).
struct Link {
  double alpha = 0;  // seconds
  double beta = 1;   // bytes per second
};

struct Topology {
  int hosts = 1;
  int ranks_per_host = 1;
  Link inside, between;
  double compute_factor = 1;
  bool overlap = true;
  double contention = 1;

  int world() const { return hosts * ranks_per_host; }
  // Returns how many hosts have a rank of the group.
  int hosts_of(const RankGroup& group) const;
  // Returns the seconds of an all-gather after which each rank has `bytes` bytes in all. A
  // reduce-scatter takes as long.
  double all_gather(const RankGroup& group, double bytes) const;
  double all_reduce(const RankGroup& group, double bytes) const {
    return 2 * all_gather(group, bytes);
  }
};

// Return the topology in a YAML file or text; kInput with file and key if it is wrong. `origin`
// names the text in messages.
Result<Topology> read_topology(const std::string& path);
Result<Topology> parse_topology(const std::string& yaml, const std::string& origin);

struct StepCost {
  double compute = 0;        // seconds on the compute stream
  double communication = 0;  // seconds on the communication stream
};

struct SimulationOptions {
  bool overlap = false;
  double contention = 1;  // factor on computation during communication
};

enum class Stream : uint8_t { kCompute, kCommunication };

struct SimulatedStep {
  int step = 0;  // index in the schedule; ReduceUpdate occurs twice
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
  std::vector<double> exposed_of_unit;  // their sum may be less than `exposed`: norms have no unit
};

// `costs`: one per step.
Simulation simulate(const Graph& graph, const Plan& plan, const Schedule& schedule,
                    const GradientSlots& slots, const std::vector<StepCost>& costs,
                    const SimulationOptions& options);

}  // namespace ofsdp::runtime
