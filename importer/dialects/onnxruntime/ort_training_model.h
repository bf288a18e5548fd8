// The first half of opening artifacts: a training model of ONNX Runtime made an ordinary one. Its
// weights are those of the checkpoint, its accumulators are gone, the gradients that they took are
// outputs, and what backward starts from is an input; ort_artifacts.h says more.
//
// Ownership: fills in `artifacts`, whose paths, training and checkpoint are there. Threads: any.
// Errors: kInput naming file and tensor or node.
#pragma once

#include "importer/dialects/onnxruntime/ort_artifacts.h"

namespace ofsdp::importer {

// `checkpoint`: the open file, which the weights are read from later.
Status make_ordinary(OrtArtifacts& artifacts, OpenFile checkpoint);

}  // namespace ofsdp::importer
