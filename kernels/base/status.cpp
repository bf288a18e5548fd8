#include "kernels/base/status.h"

#include <cstdlib>
#include <vector>

#include "kernels/base/text.h"

namespace ofsdp::base {

// Escapes values, so that names cannot break a message into lines; line breaks in the format stay.
Status formatted_error(ErrorKind kind, std::string_view format,
                       std::initializer_list<FormatArgument> values) {
  std::vector<std::string> texts;
  texts.reserve(values.size());
  std::vector<FormatArgument> shown(values);
  for (FormatArgument& value : shown) {
    if (value.kind() != FormatArgument::Kind::kText) continue;
    value = FormatArgument(texts.emplace_back(escaped(value.text())));
  }
  return {kind, format_values(format, shown.data(), shown.size())};
}

Status Status::with_prefix(std::string_view prefix) && {
  if (error_) error_->message.insert(0, escaped(prefix) + ": ");
  return std::move(*this);
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  print_lines(stderr,
              format_text("{}:{}: internal error: {}: {}\n", file, line, condition, message));
  std::abort();
}

}  // namespace ofsdp::base
