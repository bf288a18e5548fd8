// SampleOrder finds the samples in a value. A value made of a batch lies as [outer, batch, inner]:
// logits [batch, time, classes] have outer 1, [time, batch, classes] have outer `time`. A label
// column is [batch, outer x inner] and must be brought into the order of the value before a loss or
// a metric pairs the two (importer/passes/loss.h).
//
// The batch is on the axis that --batch-axis names; else on the axis with the symbol of the inputs'
// samples; else on the axis that doubles if the number of samples doubles. If rows of samples were
// merged into one axis ([time x batch, classes]), the nodes before tell the order.
//
// Errors: kInput naming file and output.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

// The axis of an input that holds the samples. Columns have it first; a file may have it elsewhere:
// a state [layers, batch, hidden], a sequence [time, batch, width].
//
// It is, in this order: the axis that --batch-axis names; an axis with a symbol that means batch,
// or N or B after a first axis of time; the axis with the symbol of another input's samples, if
// that symbol means batch or the first axis is a number; the first axis.
//
// Errors: kInput naming file and input.

using BatchAxes = std::map<std::string, int64_t>;  // name of an input or output -> axis

// Refuses names that are neither inputs nor outputs of the graph.
Status check_names(const Graph& graph, const BatchAxes& given);

// Puts the samples of every input first. An input with its batch elsewhere gets the axes of a
// column, and a Transpose makes the order of the file for the readers. Refuses files with
// contradictory symbols. REQUIRES: the graph is symbolic.
Result<Graph> with_samples_first(const Graph& graph, const BatchAxes& given);

// Refuses an input that fits the column in two ways: the first axis is a number, other inputs have
// batches of any size, and the column also fits with the samples on another axis. REQUIRES:
// with_samples_first made `graph`. `rows`: a sample of each input.
Status check_batch_axes(const Graph& graph, const std::map<std::string, Shape>& rows,
                        const BatchAxes& given);

class SampleOrder {
 public:
  // REQUIRES: `graph` is specialized for `batch` samples. `twice` makes the graph of twice as many;
  // it is called at most once, and only if the symbols of the file do not decide.
  SampleOrder(const Graph& graph, int64_t batch, BatchAxes given,
              std::function<Result<Graph>()> twice)
      : graph_(graph), batch_(batch), given_(std::move(given)), make_twice_(std::move(twice)) {}

  // Returns `outer` of a value. The last `width_axes` axes are no places (classes: 1). `flag`
  // begins the message.
  Result<int64_t> outer(ValueId id, int width_axes, const std::string& flag);

 private:
  struct Spot {  // an axis of a value; one step along it is step / of places of the first value
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
// equal. `batch`: samples of the graph.
Result<ValueId> reordered(Graph& graph, ValueId labels, int64_t batch, int64_t from, int64_t to);

}  // namespace ofsdp::importer
