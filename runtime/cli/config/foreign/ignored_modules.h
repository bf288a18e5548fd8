// Accelerate names modules by a regular expression that must match whole names ("lm_head", "a|b",
// ".*\.norm"); --ignore takes globs of parameter names. Nothing for an expression that no glob says.
//
// Ownership: values. Threads: any. Errors: none of its own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ofsdp::cli {

std::optional<std::vector<std::string>> ignored_globs(std::string_view expression);

}  // namespace ofsdp::cli
