// compute_in_float32: a model whose weights are stored in other types - a file exported in float16,
// bfloat16 or float64 - made one of float32 in all its types, casts, constants and subgraphs.
// Parameters are float32 here whatever the file stores (importer/file/onnx_file.h reads and rounds
// them), so the graph around them has to be; computing in fewer bits is what --param-dtype is for.
// Types that no weight has stay as they are, and so does a model whose weights are all float32.
//
// Ownership: changes the model it is given. Threads: any. Errors: kInput naming a tensor whose
// bytes do not match its shape.
#pragma once

#include <onnx/onnx_pb.h>

#include <vector>

#include "importer/file/initializer.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

Status compute_in_float32(onnx::ModelProto& model, const std::vector<Initializer>& weights);

}  // namespace ofsdp::importer
