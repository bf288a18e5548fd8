// Checks of input from a user, a file, a plug-in or the network: one statement each.
//
//   OFSDP_REJECT_IF(count > kMax, "{}: expected at most {} ranks, found {}", path, kMax, count);
//
// The calling function returns a Status or a Result<T>.
#pragma once

#include "kernels/base/status.h"

// Returns input_error(format, values...) from the calling function if `condition` is true.
#define OFSDP_REJECT_IF(condition, ...)                            \
  do {                                                             \
    if (condition) return ::ofsdp::base::input_error(__VA_ARGS__); \
  } while (false)

// The same with fault(format, values...).
#define OFSDP_FAULT_IF(condition, ...)                       \
  do {                                                       \
    if (condition) return ::ofsdp::base::fault(__VA_ARGS__); \
  } while (false)

namespace ofsdp::base {

// Returns the value, or its error with "prefix: " before the message.
template <typename T>
Result<T> prefixed(const std::string& prefix, Result<T> result) {
  if (result.ok()) return result;
  return std::move(result).status().with_prefix(prefix);
}

}  // namespace ofsdp::base
