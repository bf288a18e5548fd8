// Texts of another length than the model takes: the refusal names the column, both lengths and the
// key of the data's description that cuts the texts (max_length, sequence_length) or pads them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "importer/graph/graph.h"
#include "kernels/base/status.h"
#include "runtime/engine/executor.h"
#include "runtime/train/setup/data_setup.h"

namespace ofsdp::runtime {

using RowShapes = std::map<std::string, Shape>;  // one sample's shape, by input

// The inputs of a graph that texts feed, and the lengths that it takes. The arguments must outlive
// the object.
class TextFit {
 public:
  // `rows`: of the data. `make`: returns the specialized graph for such rows.
  TextFit(const Graph& symbolic, const DataSetup& data, const RowShapes& rows,
          std::function<Result<Graph>(const RowShapes&)> make);

  // Returns the refusal of the texts in place of that of a graph, if texts of another length would
  // make one.
  Status explained(Status refusal) const;
  // Refuses texts with more positions than a table has that `outputs` of the graph for these rows
  // need.
  Status check_positions(const Graph& made, const std::vector<ValueId>& outputs) const;

 private:
  bool takes(int64_t length) const;
  int64_t most() const;

  const Graph& symbolic_;
  const DataSetup& data_;
  const RowShapes& rows_;
  const std::function<Result<Graph>(const RowShapes&)> make_;
  const ColumnSpec* first_ = nullptr;  // null: no texts
  std::vector<std::string> names_;     // inputs with its length
  int64_t length_ = 0;
  int64_t declared_ = -1;  // in the file; -1: open
};

// Adds the same advice to the fault of a node that looks up more positions than its table has.
// `refused`: the node of the fault.
Status about_positions(Status fault, const RefusedNode& refused, const DataSetup& data);

}  // namespace ofsdp::runtime
