// Rules that take a node of ai.onnx from one opset to the next if ONNX's version converter has no
// adapter, or one that loses the meaning: broadcasting by an axis, the coercion of Hardmax to two
// axes, the coordinates of Resize. Each follows the standard's text of the older version.
//
// Threads: any. Errors: kInput, expected and found; the caller names the node and its opset.
#pragma once

#include <string>

#include "importer/normalize/old_node.h"

namespace ofsdp::importer {

// Rules that need ranks are all of this opset: schemas before it infer few shapes.
inline constexpr int kRankedOpset = 6;

struct OpsetRule {
  const char* op;
  int from;  // the opset that the node is in; afterwards it is a node of the next
  Status (*apply)(OldNode&);
  bool by_rank = false;
};

// Null where there is none.
const OpsetRule* find_opset_rule(const std::string& op, int from);

// Returns whether a rule on the way of a node of that operator in opset `from` needs ranks.
bool rank_matters(const std::string& op, int from);

}  // namespace ofsdp::importer
