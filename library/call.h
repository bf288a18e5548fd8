// Common to every function of onnx_fsdp.h: its error's line is kept by thread, and no exception
// leaves it.
//
// Threads: any; a line belongs to the thread that made the call. Errors: as statuses.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "kernels/base/status.h"
#include "library/namespaces.h"
#include "library/onnx_fsdp.h"

namespace ofsdp::library {

// Keeps the line of an error for onnx_fsdp_error.
onnx_fsdp_status told(const Status& status);

// Calls body(), which returns a Status.
template <typename Body>
onnx_fsdp_status call(const Body& body) {
  try {
    return told(body());
  } catch (const std::bad_alloc&) {
    return told(fault("out of memory: expected less than the machine has or its limits allow"));
  } catch (const std::exception& error) {
    return told(fault("unexpected: {}", error.what()));
  }
}

}  // namespace ofsdp::library
