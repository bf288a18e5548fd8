// Schedule: one micro-batch of training or evaluation, compiled into a flat, printable program.
//
// compile is pure: the same graph, plan and options give the same steps on every rank, so ranks
// agree on the order of collectives before the first step (`collective_hash`), and prefetch is
// nothing but the place of a Gather. Golden tests compare `text`.
//
//   Gather u        the unit's parameters, from all shards, into its gather slot
//   Free u          the gather slot may be used for something else
//   Run n           node n of the graph
//   PostRows n      node n, ofsdp.JoinRows: this rank's rows are complete, for all ranks
//   JoinRows n      and those of all ranks are there; on a device PostRows begins their exchange
//                   and its streams wait for it
//   CheckLoss       the loss is known; NaN ends the run
//   Carry k         carried parameter k (a running statistic) takes its next value
//   Acquire u       the unit's gradient slot may be written: every rank has read what was in it
//   Accumulate u    this micro-batch's gradients are added to those before, where these stay whole
//                   (no_shard, zero1), or take their place, widened, if it is the first
//   Post u          the unit's gradient slot is complete
//   Reduce u        reduce-scatter into (or added to) the gradient shard
//   PostShard u     that shard is complete, for the ranks that hold the same one of other copies
//   AllReduce u     the slot (hybrid: the shard) ends with the sum over the copies
//   ReduceUpdate u  reduce-scatter and optimizer update in one pass over the shard
//   Clip            the global norm, and with it the factor of the updates that follow
//   Update u        optimizer update of what the rank owns of the unit
//   Factor u        of an optimizer that keeps second moments as factors of rows and columns: the
//                   sums of both over all ranks, and with them the factors
//   Orthogonalize u  of Muon: the unit is gathered, each rank makes some of its matrices
//                   orthogonal, and all get their parts of all
//   Trust           of an optimizer that needs norms of whole parameters: these, from all ranks
//   Apply u         and then the step that the updates have prepared
//   Watch           the norms of each unit's gradient and weights, from all ranks
//
// [Note: prefetch and memory] A unit is resident from its Gather to its Free. The Gather of the
// next residency is placed `depth` residencies ahead of its first use, so at most depth + 1 of them
// (and the root) overlap; the memory plan turns overlap into bytes.
//
// [Note: rows of all ranks] PostRows stands right after the node that makes the rows and waits for
// nobody's rows; JoinRows stands before the first node that reads them, so what lies between
// overlaps with the exchange. A rank without samples posts no rows and takes part all the same.
//
// [Note: two waits a unit] A local reduce reads the peers' slots: Post and Reduce guard that they
// are complete, Acquire that they are no longer read. Reduce stands one unit later than Post, so
// that ranks that run apart do not wait for each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/plan.h"

namespace ofsdp::runtime {

enum class StepKind : uint8_t {
  kGather,
  kFree,
  kRun,
  kCheckLoss,
  kCarry,
  kAcquire,
  kAccumulate,
  kPost,
  kReduce,
  kPostShard,
  kAllReduce,
  kReduceUpdate,
  kClip,
  kUpdate,
  kFactor,
  kOrthogonalize,
  kTrust,
  kApply,
  kPostRows,
  kJoinRows,
  kWatch,
};

struct Step {
  StepKind kind = StepKind::kRun;
  int index = -1;  // unit, node of kRun and of rows, or position in Graph::carried

  bool operator==(const Step&) const = default;
};

// The work of a unit's optimizers on whole matrices.
struct MatrixSteps {
  bool factors = false;
  bool orthogonalizes = false;
  size_t work_bytes = 0;  // of the latter
};

struct CompileOptions {
  bool training = true;
  bool first_micro = true;  // of an update
  bool last_micro = true;
  bool clip = false;  // the norm is needed before the update
  bool forward_prefetch = true;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  int prefetch_depth = 1;
  bool parameter_norms = false;            // the optimizer's steps need them
  std::vector<MatrixSteps> matrices = {};  // per unit; empty: none, and gradients are not kept
  bool watch = false;                      // norms of units are kept
};

struct Schedule {
  std::vector<Step> steps;
};

Schedule compile(const Graph& graph, const Plan& plan, const CompileOptions& options);

// For each value: the parameter whose bytes it shows (itself, or through views), or -1.
std::vector<int> parameter_behind(const Graph& graph);

// For each parameter, trained or frozen: its unit, or -1 where it is kept whole.
std::vector<int> unit_of_parameter(const Graph& graph, const Plan& plan);

// The meaning of a step's index.
enum class StepSubject : uint8_t { kNode, kUnit, kBuffer, kRun };

struct StepTraits {
  const char* name;  // "Gather"
  StepSubject subject;
  bool communicates;  // all ranks have it at the same place
  bool waits;         // for other ranks, on a CPU
  bool shown;         // in a trace: a step that takes no time would only hide the others
  bool on_device;     // a device has something to do for it
};
const StepTraits& traits(StepKind kind);

bool communicates(const Step& step);

// Two steps apart in anything that communicates have different hashes (FNV-1a, 64 bits).
uint64_t collective_hash(const Schedule& schedule, const Plan& plan, uint64_t seed = 0);

const char* step_name(StepKind kind);
std::string text(const Schedule& schedule, const Graph& graph);

}  // namespace ofsdp::runtime
