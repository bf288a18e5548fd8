#include "kernels/base/format.h"

#include <fmt/args.h>
#include <fmt/format.h>

#include <cstdlib>

namespace ofsdp::base {

std::string format_values(std::string_view format, const FormatArgument* values, size_t count) {
  using Kind = FormatArgument::Kind;
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  store.reserve(count, 0);
  for (size_t i = 0; i < count; ++i) {
    const FormatArgument& value = values[i];
    switch (value.kind()) {
      case Kind::kBool:
        store.push_back(value.whole() != 0);
        break;
      case Kind::kChar:
        store.push_back(static_cast<char>(value.whole()));
        break;
      case Kind::kSigned:
        store.push_back(value.whole());
        break;
      case Kind::kUnsigned:
        store.push_back(static_cast<uint64_t>(value.whole()));
        break;
      case Kind::kFloat:
        store.push_back(static_cast<float>(value.real()));
        break;
      case Kind::kDouble:
        store.push_back(value.real());
        break;
      case Kind::kText:
        store.push_back(value.text());
        break;
      case Kind::kAddress:
        store.push_back(value.address());
        break;
    }
  }
  try {
    return fmt::vformat(format, store);
  } catch (const fmt::format_error& error) {
    std::fprintf(stderr, "format '%.*s': internal error: %s\n", static_cast<int>(format.size()),
                 format.data(), error.what());
    std::abort();
  }
}

}  // namespace ofsdp::base
