// Schedule: one micro-batch, of training or evaluation, as a flat list of steps. steps.inc has the
// kinds and explains their traits; text() prints a schedule.
//
// make_schedule is pure: the same graph, plan and options give the same steps on every rank. So
// ranks can compare their collectives' order before the first step (collective_hash), and prefetch
// only moves a Gather.
//
// [Note: prefetch and memory] A unit is resident from Gather to Free. Gather stands `depth`
// residencies ahead of the first use, so at most depth + 1 residencies (and the root) overlap. The
// memory plan turns overlap into bytes.
//
// [Note: rows of all ranks] PostRows follows the node that computes the rows and does not wait for
// other rows. JoinRows stands before the first node that reads them, so the nodes between the two
// overlap with the exchange. A rank without samples posts no rows but takes part.
//
// [Note: two waits per unit] A local reduction reads the peers' slots. Post and Reduce ensure
// complete slots, Acquire that no peer still reads them. On CPUs Reduce stands one unit after Post,
// so ranks may drift apart without waiting. On a device nobody waits on the host: the communication
// stream begins a reduction when the work before it has ended, so Reduce and a sum over copies
// follow Post at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan/plan.h"

namespace ofsdp::runtime {

enum class StepKind : uint8_t {
#define STEP(kind, subject, traits, timing, lowering, description) k##kind,
#include "runtime/compile/program/steps.inc"
};

struct Step {
  StepKind kind = StepKind::kRun;
  int index = -1;  // a node's, a unit's or in Graph::carried: see StepTraits::subject

  bool operator==(const Step&) const = default;
};

// A unit's steps for optimizers that work on whole matrices.
struct MatrixSteps {
  bool factors = false;
  bool orthogonalizes = false;
  size_t work_bytes = 0;  // Orthogonalize's workspace
};

// When backward gathers the next unit: before the gradients of the current one, after them, or when
// the first node needs it.
enum class BackwardPrefetch { kPre, kPost, kNone };
OFSDP_ENUM_NAMES(BackwardPrefetch, {kPre, "pre"}, {kPost, "post"}, {kNone, "none"})

// The options of the command line that decide where a Gather stands.
struct PrefetchOptions {
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  std::optional<int64_t> prefetch_depth;  // auto: 1

  int depth() const { return static_cast<int>(prefetch_depth.value_or(1)); }
};

struct CompileOptions {
  PrefetchOptions prefetch = {};
  bool training = true;
  bool first_micro = true;  // in the update
  bool last_micro = true;
  bool clip = false;                       // the update needs the global norm
  bool parameter_norms = false;            // the optimizer needs parameter norms
  std::vector<MatrixSteps> matrices = {};  // one per unit; empty: no optimizer needs matrices
  bool watch = false;                      // --watch: a Watch step after the update
  bool on_device = false;
};

struct Schedule {
  std::vector<Step> steps;
};

// `graph`: specialized and finished; with its loss and, if options.training, its backward nodes.
// `plan`: made of this graph's parameters; training and evaluation share it.
Schedule make_schedule(const Graph& graph, const Plan& plan, const CompileOptions& options);

// Returns for each value the parameter it is or views, or -1.
std::vector<int> parameter_behind(const Graph& graph);

// Returns for each parameter, trained or frozen, the unit, or -1 if it is kept whole.
std::vector<int> unit_of_parameter(const Graph& graph, const Plan& plan);

// The list into which Step::index points; kRun: none.
enum class StepSubject : uint8_t { kNode, kUnit, kBuffer, kRun };

// A row in steps.inc, which explains each member.
struct StepTraits {
  const char* name;  // "Gather"
  StepSubject subject;
  bool communicates;
  bool waits;
  bool traced;
  bool on_device;
  const char* description;
};
const StepTraits& traits(StepKind kind);

bool communicates(const Step& step);

// Hashes all collective steps (FNV-1a, 64 bits). `seed`: the hash of an earlier schedule.
uint64_t collective_hash(const Schedule& schedule, const Plan& plan, uint64_t seed = 0);

const char* step_name(StepKind kind);
// Returns the kinds as a table in Markdown; docs/internals/design.md contains it.
std::string step_table();
std::string text(const Schedule& schedule, const Graph& graph);

}  // namespace ofsdp::runtime
