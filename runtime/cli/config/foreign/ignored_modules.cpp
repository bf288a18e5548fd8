#include "runtime/cli/config/foreign/ignored_modules.h"

#include <cctype>

namespace ofsdp::cli {

std::optional<std::vector<std::string>> ignored_globs(std::string_view expression) {
  std::vector<std::string> globs(1);
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    const char next = i + 1 < expression.size() ? expression[i + 1] : '\0';
    if (c == '|') {
      globs.emplace_back();
    } else if (c == '\\' && next == '.') {
      globs.back() += '.', ++i;
    } else if (c == '.' && next == '*') {
      globs.back() += '*', ++i;
    } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.') {
      globs.back() += c;
    } else {
      return std::nullopt;
    }
  }
  for (std::string& glob : globs) {
    if (glob.empty()) return std::nullopt;
    glob += ".*";  // the parameters of the module
  }
  return globs;
}

}  // namespace ofsdp::cli
