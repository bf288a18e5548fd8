// Weights inside the branches of If nodes, at any depth. The skeleton has them as inputs of the
// main graph, like all weights, and a branch reads them from there: an outer scope's names are
// visible in it. A name that the file has twice (the same layer in both branches) gets the branch's
// place before it, here and in the branch's nodes.
//
// Bodies of Loop and Scan stay as they are, and so does a tensor that is its branch's output, is
// not floating-point, or has no axes. The skeleton has the data of those that stay, wherever the
// file has them.
//
// Works on bytes, before parsing; they must outlive the results. Errors: kInput, without the file's
// name.
#pragma once

#include <cstdint>
#include <functional>
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

// Returns whether a tensor in the node's attributes or their graphs has its data elsewhere.
bool has_external(const WireField& node);

// Returns the body of a TensorProto with its data.
using Embed = std::function<Result<std::string>(const WireField& tensor)>;

// Returns the body of a main-graph node without the tensors in `lifted`, by their field's begin.
// `embed`: for tensors that stay and have their data elsewhere.
Result<std::string> without_tensors(const WireField& node,
                                    const std::map<int64_t, const BranchTensor*>& lifted,
                                    const Embed& embed);

}  // namespace ofsdp::importer
