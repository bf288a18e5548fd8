// Weights inside the branches of If nodes, at any depth. The skeleton has them as inputs of the
// main graph, like all weights, and a branch reads them from there: an outer scope's names are
// visible in it. A name that the file has twice (the same layer in both branches) gets the branch's
// place before it, here and in the branch's nodes.
//
// Bodies of Loop and Scan stay as they are, and so does a tensor that is its branch's output, is
// not floating-point, has no axes, or has its data elsewhere.
//
// Works on bytes, before parsing; they must outlive the results. Errors: kInput, without the file's
// name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

struct BranchTensor {
  WireField field;      // of the branch's graph: an initializer, or a Constant node
  WireField message;    // the TensorProto
  TensorRecord tensor;  // with its name in the branch
  std::string outer;    // its name in the main graph

  bool in_node() const { return field.number == graph_field::kNode; }
};

Result<std::vector<BranchTensor>> branch_tensors(const WireField& graph);

// Returns the body of a main-graph node without the tensors in `lifted`, by their field's begin.
Result<std::string> without_tensors(const WireField& node,
                                    const std::map<int64_t, const BranchTensor*>& lifted);

}  // namespace ofsdp::importer
