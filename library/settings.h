// Callers' settings, statuses, and the namespaces that the library sees.
//
// Names the rooms that the library sees without a qualifier, as kernels/base/namespaces.h does for
// the others.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <vector>

#include "kernels/base/namespaces.h"
#include "kernels/base/status.h"
#include "library/onnx_fsdp.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::library {
using namespace kernels;
using namespace plugins;
using namespace importer;
using namespace fsdp;
using namespace runtime;
using namespace cli;

// Common to every function of onnx_fsdp.h: each thread keeps its own error line, and no exception
// leaves a function.

// Keeps an error line for onnx_fsdp_error.
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

// Converts onnx_fsdp_settings for the rest of the program: to command line words, and arrays.
//
// Arrays stay the caller's. Input errors name the member.

// Copies the caller's struct, which may have an older header: members that it lacks are zero.
Result<onnx_fsdp_settings> known_settings(const onnx_fsdp_settings* settings);

// Returns `command`, the options and the model, without the program's name.
Result<std::vector<std::string>> command_words(const std::string& command,
                                               const onnx_fsdp_settings& settings);

Result<std::vector<ColumnArray>> column_arrays(const onnx_fsdp_array* arrays, size_t count);

}  // namespace ofsdp::library
