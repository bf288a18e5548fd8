#include "kernels/core/attributes.h"

namespace ofsdp::kernels {
namespace {

std::string text_of(int64_t v) { return format_text("{}", v); }
std::string text_of(float v) { return format_text("{}", v); }
std::string text_of(const std::string& v) { return v; }
std::string text_of(const ConstantPtr& v) { return v->desc.text(); }
template <typename T>
std::string text_of(const std::vector<T>& v) {
  return format_text("[{}]", joined(v, ","));
}

}  // namespace

std::string Attributes::text() const {
  std::string text;
  for (const auto& [name, value] : map_) {
    text += (text.empty() ? "" : " ") + name + "=";
    text += std::visit([](const auto& v) { return text_of(v); }, value);
  }
  return text;
}

}  // namespace ofsdp::kernels
