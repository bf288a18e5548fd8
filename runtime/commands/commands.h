// The commands of fsdp-run besides train, plan and eval.
//
// fsdp-run export writes a checkpoint as one file. Everything but the trained values comes from the
// model: it is looked for in the checkpoint (a full one contains it), at the original path, and
// next to the checkpoint. `onnx` is the input file with other weights; with --inference training
// switches are turned off. `safetensors` holds the floating-point initializers, or the keys of a
// PyTorch module's state_dict (importer/write/state_dict.h). --verify runs a batch through the
// checkpoint's state, the new file and the input file, and reports the differences. If the run kept
// an average of the weights (--ema), that is what is written, unless --ema-use is off.
//
// CKPT_DIR is a checkpoint, or a folder with several: then the latest undamaged one is used. With
// --format safetensors it may be a model file.
// Errors: kInput, kFault (disk; the new file's outputs differ from the state's).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "importer/file/onnx_file.h"
#include "importer/graph/reference_run.h"
#include "kernels/base/status.h"
#include "kernels/core/op_def.h"
#include "runtime/log/metrics.h"
#include "runtime/options.h"
#include "runtime/report/plan_report.h"
#include "runtime/train/prepared_run.h"

namespace ofsdp::runtime {

// Compares three forward passes on one made-up batch, training switches off: the graph with a
// checkpoint's values, the exported file, and the input file. Errors: kInput if the model cannot be
// run alone; also the reader's errors.
struct ForwardDifference {
  double exported = 0;   // largest difference between the exported file's outputs and the state's
  double input = 0;      // the same for the input file
  double magnitude = 0;  // the state's largest output
};

// One file's forward pass on the same batch.
struct ForwardSample {
  struct Input {
    std::string name;
    TensorDesc desc;
    std::vector<std::byte> bytes;
  };
  std::vector<Input> inputs;
  std::map<std::string, std::vector<float>> outputs;
};

Result<ForwardSample> sample_forward(const OnnxFile& file, const Registry& registry);

// `kind`: the trained values' (weights_kind).
Result<ForwardDifference> compare_forwards(const OnnxFile& input, const std::string& exported,
                                           CheckpointReader& checkpoint, const std::string& kind,
                                           const Registry& registry);

Status export_checkpoint(const Options& options, const Registry& registry);

// fsdp-run doctor prints a line for each problem or improvement if a run had these options, with
// the flag that helps. Writes nothing but --find-lr's picture.
//
// 1. the plan for the requested ranks: memory. 2. the model: losses of its exporter
// (importer/edit/export_losses.h), merged copies, frozen statistics, preprocessing, the loss.
// 3. the data: labels and values in the first rows (doctor_data.cpp). 4. updates on one CPU rank,
// which copies the weights. 5. with --find-lr, a learning rate sweep.
//
// If a finding would end the run, later steps are skipped. With --json it prints one object:
// {"findings": [{"problem", "option"}]}. Errors: kInput if the command cannot be examined; kFault.

// `context` has as many ranks as requested, but the others need not run.
Status run_doctor(const RunContext& context);

// fsdp-run predict writes a model's outputs for every row of the data, in order. The operand is a
// model file or a run's folder, in which the file for inference comes first. The forward pass is
// that of an evaluation: training switches off. One process computes all rows.
//
// The outputs are the named ones, else all floating ones with a row for each sample; outputs that
// need a missing column are left out. The graph is cut at them, so columns for labels may be
// missing. .npy holds one output, .npz each under its name, .csv a line for each sample.
// Errors: kInput; kFault (disk).
Status predict(const Options& options, const Registry& registry);

// fsdp-run data prints the columns of data: types, shapes, counts, ranges, missing values and first
// rows (runtime/data/survey.h). With a model, it also prints the first row as the inputs get it.
// For a table or a text it prints the YAML file that feeds them. Writes nothing but --html's page
// of images. Errors: kInput, after the tables if a run would refuse the data.
Status show_data(const Options& options, const Registry& registry);

// fsdp-run prepare writes a YAML file for --data: a file or a folder of data as columns for the
// model's inputs and labels, with a part for evaluation. The first row is read as a run would read
// it. Errors: kInput, and nothing is written, if the file is there or the data do not fit.
Status prepare_data(const Options& options, const Registry& registry);

// fsdp-run demo: a whole run in seconds, without network, Python or a model. Makes a small network
// and data in a folder, evaluates it, trains it with full_shard on two ranks, and evaluates the
// trained file. All three are commands; each is printed, run as a user would run it, and kept in
// commands.sh in the folder.
//
// Must be called by the main thread, since the kernel ends the child with the thread that forks it.
// Returns the exit status if a command failed and reported why, else 0. Errors: kInput if the
// folder holds other files, or the command was started as a rank; kFault (disk, no process).

Result<int> run_demo(const Options& options);

// fsdp-run make-training writes a model file that contains the command's training, for other
// programs to inspect and run. `training_info` is the model with a training_info (loss, Gradient,
// optimizer), which fsdp-run also trains. `graph` is forward, loss and backward in standard
// operators for one batch size, with the gradients as outputs PARAM_grad; our own operators are
// functions in the file.
//
// Takes a training run's options; opens the data only for shapes. Errors: kInput; kFault (disk).

Status make_training(const Options& options, const ModelOrigin& origin, const Registry& registry);

// fsdp-run check compares the first batch's loss and gradient, computed as in training, with the
// operators' references in double (importer/graph/reference_run.h), which have no fusion, layout,
// 16-bit type or gradient rule.
//
// First, a plain gradient descent update on one rank gives loss and gradients. Second, the
// reference's central differences give derivatives along random directions in each parameter.
// Third, if they differ, check_nodes.cpp finds the first node that differs by itself.
//
// Writes nothing. Ends within `--limit` if the first part does: parameters are taken in a random
// order, and the others are listed. If a batch is too large for the limit, fewer rows are taken.
// Errors: kFault with the worst parameter and the first node that differs; kInput if the command
// cannot be checked.

// `context` has as many ranks as requested, but the others need not run.
Status run_check(const RunContext& context);

// fsdp-run plan --compare prepares and plans one model with two configurations, one after the
// other, and prints both plans side by side: peak by kind, times, bytes received. Errors: as a
// plan's.

struct ComparedPlan {
  std::string file;  // of the configuration
  std::unique_ptr<PreparedRun> run;
  PlanReport report;  // refers to `run`
};

// `context` must outlive the result.
Result<ComparedPlan> plan_to_compare(const RunContext& context, const std::string& file);

// At most 20 lines, or one JSON object.
std::string compared_text(const ComparedPlan& a, const ComparedPlan& b, bool json);

// The rest is for check.cpp, check_rounding.cpp and check_nodes.cpp.

// A number that both compute, and the effect of rounding on it. A right number lies as near to the
// reference as training's own numbers lie to each other once all weights are off by the rounding
// of the type. A wrong one stays away in all of them.
class CheckedNumber {
 public:
  CheckedNumber(double trained, double reference);

  void repeat(double trained);     // from training with such weights
  void disturb(double reference);  // from a reference with all numbers off

  double reference() const { return reference_; }
  double apart() const;              // infinite for NaN
  double mostly_apart() const;       // of the median of all repetitions, if that is nearer
  double rounding() const;           // how far two right numbers may be apart, by the draws so far
  double cautious_rounding() const;  // larger if there were few draws
  uint32_t draws() const;

 private:
  double reference_;
  std::vector<double> trained_;  // the first is the run's own
  double disturbed_ = 0;         // the largest change of the reference
  uint32_t disturbances_ = 0;
};

// A trained parameter's derivatives along random directions. Ratios are relative to `scale`.
struct CheckedParameter {
  std::string name;
  ValueId value = 0;
  ReferenceRun::Clock::duration lasts = {};  // time for one derivative
  std::vector<uint64_t> directions = {};     // seeds
  std::vector<CheckedNumber> derivatives = {};
  double scale = 1;

  double largest() const;  // of the reference's derivatives
  double difference() const { return most(&CheckedNumber::apart); }
  double rounding() const { return most(&CheckedNumber::rounding); }
  double excess() const;  // that rounding does not explain
  bool guessed() const;   // from few draws
  // Returns false if it differs and nobody can tell why: rounding was drawn too seldom, or may hide
  // a tenth of the derivative, which is not far below those of others.
  bool decided(double limit) const;

 private:
  double most(double (CheckedNumber::*of)() const) const;
};

// Returns the values in front of a softmax with rows that have no digits: the largest number is a
// mask, to which a float32 cannot add a score (a row masked whole by the lowest float). Rounding
// alone decides such a row; training passes a gradient on, and no difference of losses shows it.
// Gives the softmax's name.
std::map<ValueId, std::string> before_rows_without_digits(const Graph& graph,
                                                          const ReferenceRun& run);

// Input and parameter values, by name.
using NamedNumbers = std::map<std::string, std::vector<double>>;

struct NodeSearch {
  const TrainingSource& source;
  int64_t batch;
  const NamedNumbers& numbers;
  const StepContext& step;
  ReferenceRun::Clock::time_point deadline;
  double tolerance;  // for values and derivatives, relative to the largest
};

// Lets the reference of the unfused graph round to integers as the fused graph's kernels do, where
// a number lies next to the border between two (ReferenceRun::set_sides).
Status take_sides(const NodeSearch& search, const Graph& plain, ReferenceRun& reference);

// Returns the first node in the fused training graph that differs from the reference in value or
// gradient, or the first that a rewriting has changed. Empty if none is found.
Result<std::string> first_parting_node(const NodeSearch& search);

// The doctor's findings and the checks that add them. Errors: if data cannot be read or updates
// fail.

struct Finding {
  std::string problem;
  std::string option;  // the option that fixes it, or another remedy
  std::string table;   // lines; may be empty
};

struct Findings {
  // `what` and `mend` must be escaped; advice on separate lines joins the one line. `fatal`: the
  // run would stop here. `table`: indented lines that follow.
  void add(const std::string& what, const std::string& mend, bool fatal = false,
           const std::string& table = "");
  std::vector<Finding> list;
  bool stops = false;
};

// Returns "'a', 'b' and 3 more", escaped.
std::string some_names(const std::vector<std::string>& names);

// These run nothing. check_export: losses of the file's exporter.
Status check_export(const OnnxFile& file, bool free_batch, Findings& findings);
Status check_model(const ModelSetup& setup, const Options& options, Findings& findings);
Status check_evaluation(const ModelSetup& setup, Findings& findings);
// Trained weights that look like fixed preprocessing (doctor_preprocessing.cpp).
Status check_preprocessing(const ModelSetup& setup, Findings& findings);
// Reads the first rows.
Status check_data(const ModelSetup& setup, const Options& options, Findings& findings);

// Makes one update with plain gradient descent, and some with the run's options. `context` has one
// rank; `total`: updates in the whole run; `unfit`: another loss is advised (unfit_predictions).
Status check_updates(const RunContext& context, int64_t total, bool unfit, Findings& findings);

// Updates 1 ... `count` on one rank, until the loss is not finite.
struct SomeUpdates {
  std::vector<StepRow> rows;
  std::string failure;  // why there are fewer rows; empty if there are not
  std::string table;    // lines about the failure
  // with `compare`: trained tensors that the first update left unchanged
  std::vector<std::string> still;
  int64_t classes = 0;  // of the loss
};
Result<SomeUpdates> run_updates(const RunContext& context, int64_t count, bool compare,
                                const std::function<bool(const StepRow&)>& goes_on);

// --find-lr (find_lr.cpp): the loss at learning rates that grow by a constant factor from 1e-7 to
// 10, until the loss is four times the least.
struct LrPoint {
  double lr = 0;
  double loss = 0;  // smoothed
};
// Returns at least 5 points; kInput if the loss is finite at fewer rates, and errors of the
// updates. REQUIRES: `context` has one rank.
Result<std::vector<LrPoint>> lr_sweep(const RunContext& context);
// Returns the rate at which the smoothed loss falls most steeply over the rate's logarithm.
double suggested_lr(const std::vector<LrPoint>& points);
std::string curve_text(const std::vector<LrPoint>& points);
std::string curve_svg(const std::vector<LrPoint>& points);

}  // namespace ofsdp::runtime
