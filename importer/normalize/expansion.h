// How large a model becomes when its functions are put in place of their calls: functions that call
// each other ten times a level make 10^8 nodes of a file of two kilobytes. Counted over the
// functions, each once, before anything is inlined.
//
// Pure. Threads: any. Errors: kInput where the budgets for nodes, bytes or depth are passed, and
// for a function that calls itself.
#pragma once

#include <onnx/onnx_pb.h>

#include "kernels/base/status.h"

namespace ofsdp::importer {

Status check_expansion(const onnx::ModelProto& model);

}  // namespace ofsdp::importer
