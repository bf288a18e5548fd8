#include "kernels/core/attributes.h"

namespace ofsdp::kernels {
namespace {

struct Printer {
  std::string operator()(int64_t v) const { return format_text("{}", v); }
  std::string operator()(float v) const { return format_text("{}", v); }
  std::string operator()(const std::string& v) const { return v; }
  std::string operator()(const std::vector<int64_t>& v) const {
    return format_text("[{}]", joined(v, ","));
  }
  std::string operator()(const std::vector<float>& v) const {
    return format_text("[{}]", joined(v, ","));
  }
  std::string operator()(const std::vector<std::string>& v) const {
    return format_text("[{}]", joined(v, ","));
  }
  std::string operator()(const ConstantPtr& v) const { return v->desc.text(); }
};

}  // namespace

std::string Attributes::text() const {
  std::string text;
  for (const auto& [name, value] : map_) {
    text += (text.empty() ? "" : " ") + name + "=" + std::visit(Printer{}, value);
  }
  return text;
}

}  // namespace ofsdp::kernels
