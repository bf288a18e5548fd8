// The pipeline: the only place that orders the passes over a graph.
//
// TrainingSource runs the stages up to kFinish, which return a micro-batch's graph. Planning runs
// kProgram on that graph, once for each program. The verifier follows each pass
// (importer/graph/verify.h); docs/internals/design.md shows the table.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>

#include "importer/graph/graph.h"
#include "importer/normalize/onnx_import.h"
#include "importer/passes/joined_nodes.h"
#include "importer/passes/loss.h"
#include "importer/passes/model_inputs.h"
#include "importer/passes/passes.h"
#include "importer/passes/specialize.h"
#include "importer/passes/trained_set.h"
#include "kernels/base/names.h"

namespace ofsdp::importer {

// The part in a graph that data and options decide.
struct GraphSettings {
  std::vector<LossSpec> losses;       // at least one
  std::map<std::string, Shape> rows;  // one sample's shape, by input and label column
  int64_t packed = 0;  // entries of a row that documents share (separate_documents); 0: none do
  // The axes of rows that a micro-batch of short rows cuts to one length.
  std::map<std::string, std::vector<int>> cut_axes{};
  DType param_dtype = DType::kFloat32;  // nodes compute in it
  std::vector<MeasureSpec> measures{};  // of the evaluation graph
  RankRows ranks{};                     // the ranks that share a micro-batch
  bool sync_batch_norm = false;         // statistics over the rows of `ranks`
  PassSwitches passes{};
};

// Passes of one stage run together, and callers choose stages. Axes are symbolic up to kTeacher.
enum class PassStage {
  kImport,      // from the file
  kTeacher,     // a second model joins
  kSpecialize,  // shapes become known
  kLoss,
  kStatistics,
  kFuse,
  kBackward,
  kFinish,
  kProgram,  // for the kernels and the units of this run
};
OFSDP_ENUM_NAMES(PassStage, {kImport, "import"}, {kTeacher, "teacher"}, {kSpecialize, "specialize"},
                 {kLoss, "loss"}, {kStatistics, "statistics"}, {kFuse, "fuse"},
                 {kBackward, "backward"}, {kFinish, "finish"}, {kProgram, "program"})

// Operands of passes besides the graph. A caller must set the members that the passes of the stages
// read.
struct PassContext {
  // kImport
  const OnnxFile* file = nullptr;
  const Operators* operators = nullptr;
  const TrainedRules* rules = nullptr;
  WantedValues wanted = {};
  // kTeacher and later
  const Graph* symbolic = nullptr;
  const Lowering* lowering = nullptr;
  const Teacher* teacher = nullptr;
  const GraphSettings* settings = nullptr;
  int64_t batch = 0;
  Mode mode = Mode::kTrain;
  bool forward_only = false;  // fuse even if the file brings a backward part
  // kProgram
  bool device = false;
  bool wide_gradients = false;                   // slots of a device are float32
  TakesNode takes;                               // whether a kernel takes a node
  std::function<Graph(const Graph&)> recompute;  // null: backward recomputes nothing
  // From one pass to another: the teacher's outputs in the graph, by their names in the file.
  std::map<std::string, ValueId> taught{};
};

struct Pass {
  const char* name;
  PassStage stage;
  const char* when;  // `runs` in words, for the documents
  bool (*runs)(const Graph& graph, const PassContext& context);
  Status (*run)(Graph& graph, PassContext& context);
};

// Returns the inputs that only the teacher reads. An evaluation's graph lacks them.
std::set<std::string> inputs_of_teacher(const Graph& symbolic, const Teacher& teacher,
                                        std::span<const LossSpec> losses);

// Returns all passes, in their order.
std::span<const Pass> pipeline();

// Runs the passes in `stages` over the graph, in pipeline order.
Status run_passes(Graph& graph, PassContext& context, std::initializer_list<PassStage> stages);

// Returns the teacher's graph for a micro-batch, in evaluation mode.
Result<Graph> specialize_teacher(const PassContext& context);

}  // namespace ofsdp::importer
