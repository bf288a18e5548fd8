#include "kernels/core/kernel.h"

#include <algorithm>

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

void Attributes::set(const std::string& name, Attribute value) {
  if (map_ == nullptr) map_ = std::make_shared<Map>();
  if (map_.use_count() > 1) map_ = std::make_shared<Map>(*map_);
  (*map_)[name] = std::move(value);
}

const Attributes::Map& Attributes::none() {
  static const Map empty;
  return empty;
}

std::string Attributes::text() const {
  std::string text;
  for (const auto& [name, value] : all()) {
    text += (text.empty() ? "" : " ") + name + "=";
    text += std::visit([](const auto& v) { return text_of(v); }, value);
  }
  return text;
}

bool Problem::all_plain() const {
  auto plain = [](const TensorDesc& d) { return d.layout == Layout::kPlain; };
  return std::ranges::all_of(inputs, plain) && std::ranges::all_of(outputs, plain);
}

bool Problem::all_dense() const {
  auto dense = [](const TensorDesc& d) { return d.pitch == 0; };
  return std::ranges::all_of(inputs, dense) && std::ranges::all_of(outputs, dense);
}

bool Problem::all_dtype(DType dtype) const {
  auto same = [&](const TensorDesc& d) { return !d.present() || d.dtype == dtype; };
  return std::ranges::all_of(inputs, same) && std::ranges::all_of(outputs, same);
}

}  // namespace ofsdp::kernels
