// The order of the weights of NhwcConv and NhwcFusedConv, which their shape need not say:
// [M, kernel..., C / group] (last), as ONNX Runtime's `transformers` tool writes them, or
// [M, C / group, kernel...] (first). A file has one order. Shapes of the whole graph are inferred
// with each: a node that fits only one decides for all. If both fit, it is `last`.
//
// Threads: any. Errors: kInput, those of `specialize` with channels last if neither order fits.
#pragma once

#include "importer/passes/specialize.h"
#include "kernels/base/names.h"

namespace ofsdp::importer {

enum class NhwcWeights { kAuto, kLast, kFirst };
OFSDP_ENUM_NAMES(NhwcWeights, {kAuto, "auto"}, {kLast, "last"}, {kFirst, "first"})

// Returns whether the graph has a node whose weights have no order yet.
bool lacks_nhwc_order(const Graph& graph);

// Gives all such nodes of the graph the order. REQUIRES: not kAuto.
Graph with_nhwc_order(const Graph& graph, NhwcWeights order);

struct NhwcOrder {
  NhwcWeights order = NhwcWeights::kLast;
  bool decided = true;  // by a node of the file
};

// Finds the order of a symbolic graph. `shapes`: of its inputs. `lowering`: as in specialize.
Result<NhwcOrder> find_nhwc_order(const Graph& graph, const std::map<std::string, Shape>& shapes,
                                  Mode mode, const Lowering* lowering);

}  // namespace ofsdp::importer
