// SampleOrder finds where the samples of a value stand. A value that nodes make of a batch lies as
// [outer, batch, inner]: logits [batch, time, classes] have outer 1, [time, batch, classes] outer
// `time`. A label column is [batch, outer x inner], and is brought into that order before a loss or
// a metric pairs the two (importer/passes/loss.h).
//
// The batch is on the axis that --batch-axis names, else on the one with the symbol of the inputs'
// samples, else on the axis that is twice as long in the graph of twice as many samples. If rows of
// samples were merged into one axis ([time x batch, classes]), the nodes before say in which order.
//
// Threads: any. Errors: kInput naming file and output.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "importer/passes/batch_axes.h"

namespace ofsdp::importer {

class SampleOrder {
 public:
  // `graph`: specialized for `batch` samples. `twice`: makes that of twice as many; it is called at
  // most once, and only if the file's symbols do not decide.
  SampleOrder(const Graph& graph, int64_t batch, BatchAxes given,
              std::function<Result<Graph>()> twice)
      : graph_(graph), batch_(batch), given_(std::move(given)), make_twice_(std::move(twice)) {}

  // Returns `outer` of a value. The last `width_axes` axes are no places: 1 for classes.
  // `flag`: begins the message.
  Result<int64_t> outer(ValueId id, int width_axes, const std::string& flag);

 private:
  struct Spot {  // an axis of a value; a step along it is step / of places of the first value
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

// Adds nodes that bring labels from one order into another. Returns `labels` if they are the same.
// `batch`: samples of the graph.
Result<ValueId> reordered(Graph& graph, ValueId labels, int64_t batch, int64_t from, int64_t to);

}  // namespace ofsdp::importer
