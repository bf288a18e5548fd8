// Attributes of a node, as in ONNX: integers, floats, strings, lists of these, and tensors.
// Subgraphs are no attributes here: the importer has resolved them.
//
// Copies share the attributes until one of them sets another, so a copy costs nothing and nobody
// needs a reference into a node that may move.
//
// Immutable once filled. `get` of another type returns the default.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "kernels/core/tensor.h"

namespace ofsdp::kernels {

using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>,
                               std::vector<float>, std::vector<std::string>, ConstantPtr>;

class Attributes {
 public:
  using Map = std::map<std::string, Attribute>;

  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const std::string, Attribute>> list)
      : map_(list.size() == 0 ? nullptr : std::make_shared<Map>(list)) {}

  bool has(const std::string& name) const { return all().contains(name); }
  void set(const std::string& name, Attribute value);
  const Map& all() const& { return map_ == nullptr ? none() : *map_; }
  Map all() && { return all(); }  // `for (... : b.attributes().all())` keeps them

  // The value, or `otherwise` if the attribute is absent (or of another type, which ONNX's
  // checker has already refused).
  template <typename T>
  T get(const std::string& name, T otherwise) const {
    if (map_ == nullptr) return otherwise;
    const auto it = map_->find(name);
    if (it == map_->end()) return otherwise;
    const T* value = std::get_if<T>(&it->second);
    return value != nullptr ? *value : otherwise;
  }
  int64_t i(const std::string& name, int64_t otherwise) const { return get(name, otherwise); }
  float f(const std::string& name, float otherwise) const { return get(name, otherwise); }
  std::string s(const std::string& name, const char* otherwise) const {
    return get(name, std::string(otherwise));
  }
  std::vector<int64_t> ints(const std::string& name, std::vector<int64_t> otherwise = {}) const {
    return get(name, std::move(otherwise));
  }

  std::string text() const;  // "axis=1 epsilon=1e-05", in the order of names

 private:
  static const Map& none();

  std::shared_ptr<Map> map_;  // shared by copies: never changed while it is; null: empty
};

}  // namespace ofsdp::kernels
