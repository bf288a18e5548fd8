// onnx_fsdp_settings as the rest of the program knows them: words of a command line, and arrays.
//
// Ownership: values; arrays stay the caller's. Threads: any. Errors: kInput naming the member.
#pragma once

#include <string>
#include <vector>

#include "library/namespaces.h"
#include "library/onnx_fsdp.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::library {

// A struct of the caller, who may have an older header: what that lacks is zero.
Result<onnx_fsdp_settings> known_settings(const onnx_fsdp_settings* settings);

// `command`, the options and the model, without the program's name.
Result<std::vector<std::string>> command_words(const std::string& command,
                                               const onnx_fsdp_settings& settings);

Result<std::vector<ColumnArray>> column_arrays(const onnx_fsdp_array* arrays, size_t count);

}  // namespace ofsdp::library
