// SampleOrder finds the samples in a value. A value made from a batch lies as [outer, batch,
// inner]: logits [batch, time, classes] have outer 1, [time, batch, classes] have outer `time`. A
// label column is [batch, outer x inner] and must be brought into the value's order before a loss
// or a metric pairs the two (importer/passes/loss.h).
//
// The batch is on the axis that --batch-axis names; else on the axis with the symbol for the
// inputs' samples; else on the axis that doubles if the sample count doubles. If sample rows were
// merged into one axis ([time x batch, classes]), the nodes before tell the order.
//
// Errors: kInput naming file and output.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

// The input axis that holds the samples. Columns have it first; a file may have it elsewhere: a
// state [layers, batch, hidden], a sequence [time, batch, width].
//
// It is, in this order: the axis that --batch-axis names; an axis with a symbol that means batch,
// or N or B after a first time axis; the axis with the symbol for another input's samples, if that
// symbol means batch or the first axis is a number; the first axis.
//
// Errors: kInput naming file and input.

using BatchAxes = std::map<std::string, int64_t>;  // input or output name -> axis
// In place of an axis: the value has none, and one sample is a batch.
inline constexpr int64_t kNoBatchAxis = std::numeric_limits<int64_t>::min();
std::string batch_axis_text(int64_t axis);  // "1", "none"

// Refuses names that are neither graph inputs nor outputs.
Status check_names(const Graph& graph, const BatchAxes& given);

// Puts every input's samples first. An input with the batch elsewhere gets a column's axes, and a
// Transpose restores the file's order for the readers; one without a batch axis gets one of size 1,
// and a Squeeze removes it. Refuses files with contradictory symbols. REQUIRES: the graph is
// symbolic.
Result<Graph> with_samples_first(const Graph& graph, const BatchAxes& given);

// Returns all inputs, if none has a batch axis: rows in the columns have as many axes as the input,
// sizes fit, and no symbol means batch. Else returns none. `rows`: each input's shape for one
// sample. REQUIRES: the graph is as the file has it.
std::vector<std::string> whole_inputs(const Graph& graph, const std::map<std::string, Shape>& rows);
// Gives such inputs a batch axis of 1, as with_samples_first does.
Graph with_whole_samples(const Graph& graph, const std::vector<std::string>& inputs);

// --free-batch: a graph with any batch, and the batch that its file fixes.
struct OpenBatch {
  Graph graph;
  int64_t fixed;
};
// Opens the batch axis of inputs that fix it: at 1, if one does, else all at the same number.
// Errors: kInput if there is none, or if the numbers differ. REQUIRES: the graph is as the file has
// it.
Result<OpenBatch> with_open_batch(const Graph& graph, const BatchAxes& given);
// Lets a Reshape of the fixed batch to [fixed, ...] keep the batch, whatever it is. `specialized`:
// `graph`, for `fixed` samples. The result may be wrong: runtime/train/setup/free_batch.h checks
// it.
Graph with_free_reshapes(const Graph& graph, const Graph& specialized, int64_t fixed);

// Refuses an input that fits the column in two ways: the first axis is a number, other inputs have
// any batch size, and the column also fits with the samples on another axis. REQUIRES:
// with_samples_first made `graph`. `rows`: each input's shape for one sample.
Status check_batch_axes(const Graph& graph, const std::map<std::string, Shape>& rows,
                        const BatchAxes& given);

class SampleOrder {
 public:
  // REQUIRES: `graph` is specialized for `batch` samples. `twice` makes the graph for twice as
  // many; it is called at most once, and only if the file's symbols do not decide.
  SampleOrder(const Graph& graph, int64_t batch, BatchAxes given,
              std::function<Result<Graph>()> twice)
      : graph_(graph), batch_(batch), given_(std::move(given)), make_twice_(std::move(twice)) {}

  // Returns a value's `outer`. The last `width_axes` axes are no places (classes: 1). `flag` begins
  // the message.
  Result<int64_t> outer(ValueId id, int width_axes, const std::string& flag);

 private:
  struct Spot {  // a value's axis; one step along it is step / of places in the first value
    ValueId id;
    int axis;
    int64_t step = 1, of = 1;
  };

  std::optional<int64_t> outer_by_symbol(const Value& value, int places) const;
  Result<int64_t> outer_given(const Value& value, int64_t axis) const;
  Result<int64_t> outer_by_size(ValueId id, int places, const std::string& flag);
  const Graph* twice();
  bool scales(ValueId id, int axis) const;
  std::vector<int> scaling_axes(ValueId id) const;
  std::optional<Spot> before(const Node& node, Spot spot) const;
  bool joins_batches(const Node& node, const Spot& spot) const;
  std::optional<int64_t> merged_before(ValueId id, int axis) const;
  Status undecided(const Value& value, const std::string& flag) const;

  const Graph& graph_;
  int64_t batch_;
  BatchAxes given_;
  std::function<Result<Graph>()> make_twice_;
  std::optional<std::unique_ptr<Graph>> twice_;  // null: there is none
};

// Adds nodes that bring labels from one order into another. Returns `labels` if the orders are
// equal. `batch`: the graph's samples.
Result<ValueId> reordered(Graph& graph, ValueId labels, int64_t batch, int64_t from, int64_t to);

}  // namespace ofsdp::importer
