// Schedule: one micro-batch of training or evaluation as a flat list of steps. The kinds of steps
// are rows of steps.inc; text() prints a schedule.
//
// compile is pure: the same graph, plan and options give the same steps on every rank. So ranks can
// compare the order of their collectives before the first step (collective_hash), and prefetch is
// only a matter of where a Gather stands.
//
// [Note: prefetch and memory] A unit is resident from Gather to Free. Gather stands `depth`
// residencies ahead of the first use, so at most depth + 1 residencies (and the root) overlap. The
// memory plan turns overlap into bytes.
//
// [Note: rows of all ranks] PostRows follows the node that computes the rows and does not wait for
// other rows. JoinRows stands before the first node that reads them, so the nodes between the two
// overlap with the exchange. A rank without samples posts no rows but takes part.
//
// [Note: two waits a unit] A local reduction reads the slots of peers. Post and Reduce ensure that
// the slots are complete, Acquire that no peer still reads them. Reduce stands one unit after Post,
// so that ranks that drift apart do not wait for each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/plan.h"

namespace ofsdp::runtime {

enum class StepKind : uint8_t {
#define STEP(kind, subject, traits, timing, lowering, description) k##kind,
#include "runtime/program/steps.inc"
};

struct Step {
  StepKind kind = StepKind::kRun;
  int index = -1;  // of a node, a unit or Graph::carried: StepTraits::subject

  bool operator==(const Step&) const = default;
};

// Steps of a unit's optimizers on whole matrices.
struct MatrixSteps {
  bool factors = false;
  bool orthogonalizes = false;
  size_t work_bytes = 0;  // workspace of Orthogonalize
};

struct CompileOptions {
  bool training = true;
  bool first_micro = true;  // of an update
  bool last_micro = true;
  bool clip = false;  // the update needs the global norm
  bool forward_prefetch = true;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  int prefetch_depth = 1;
  bool parameter_norms = false;            // the optimizer needs norms of whole parameters
  std::vector<MatrixSteps> matrices = {};  // per unit; if empty, gradients are not kept
  bool watch = false;                      // --watch
};

struct Schedule {
  std::vector<Step> steps;
};

Schedule compile(const Graph& graph, const Plan& plan, const CompileOptions& options);

// Returns for each value the parameter that it is or views, or -1.
std::vector<int> parameter_behind(const Graph& graph);

// Returns for each parameter, trained or frozen, the unit, or -1 if it is kept whole.
std::vector<int> unit_of_parameter(const Graph& graph, const Plan& plan);

// The meaning of a step's index; kRun: it has none.
enum class StepSubject : uint8_t { kNode, kUnit, kBuffer, kRun };

// A row of steps.inc.
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

// Returns a hash (FNV-1a, 64 bits) of all steps that communicate.
uint64_t collective_hash(const Schedule& schedule, const Plan& plan, uint64_t seed = 0);

const char* step_name(StepKind kind);
// Returns the kinds as a table in Markdown; docs/design.md contains it.
std::string step_table();
std::string text(const Schedule& schedule, const Graph& graph);

}  // namespace ofsdp::runtime
