#include "kernels/base/status.h"

#include <cstdio>
#include <cstdlib>

namespace ofsdp::base {

Status formatted_error(ErrorKind kind, std::string_view format,
                       std::initializer_list<FormatArgument> values) {
  return {kind, format_values(format, values)};
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: internal error: %s: %s\n", file, line, condition, message.c_str());
  std::abort();
}

}  // namespace ofsdp::base
