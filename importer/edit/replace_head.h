// --replace-head N: the last Gemm or MatMul before the prediction, with its bias, gets N outputs in
// place of those it has. Weight and bias are drawn as torch.nn.Linear draws them, from the seed.
//
// Nodes that follow the head must not depend on the number of outputs: activations, Softmax, casts,
// Transpose, ArgMax and a loss may; any other reader is an error that names it.
//
// Threads: any. Errors: kInput.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"

namespace ofsdp::importer {

class ModelEditor;

// `prediction`: the graph output; empty: the first that is a floating-point tensor.
Status replace_head(ModelEditor& editor, int64_t outputs, const std::string& prediction,
                    uint64_t seed);

}  // namespace ofsdp::importer
