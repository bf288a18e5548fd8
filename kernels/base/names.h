// Names: a table for each enum, which parsing, manifests and reports share, and suggestions for
// names that users misspell.
//
// An enum declares the table next to itself. Users see choices in row order.
//
//   enum class Mode { kOn, kOff };
//   OFSDP_ENUM_NAMES(Mode, {kOn, "on"}, {kOff, "off"})
//
//   name_of(Strategy::kZero1)            "zero1"; "?" for a value without a row
//   value_named<Strategy>("zero1")       Strategy::kZero1; nothing for an unknown name
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/namespaces.h"

namespace ofsdp::base {

template <typename E>
struct EnumName {
  E value;
  std::string_view name;
};

#define OFSDP_ENUM_NAMES(E, ...)                      \
  constexpr auto enum_names(E) {                      \
    using enum E;                                     \
    return std::to_array<EnumName<E>>({__VA_ARGS__}); \
  }

template <typename E>
constexpr std::string_view name_of(E value) {
  for (const EnumName<E>& row : enum_names(value)) {
    if (row.value == value) return row.name;
  }
  return "?";
}

template <typename E>
constexpr std::optional<E> value_named(std::string_view name) {
  for (const EnumName<E>& row : enum_names(E{})) {
    if (row.name == name) return row.value;
  }
  return std::nullopt;
}

// In table order.
template <typename E>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (const EnumName<E>& row : enum_names(E{})) names.emplace_back(row.name);
  return names;
}

// Returns the name in `known` that a person probably meant by `name` (an option, key, column or
// node), or "" if none is near.
//
// Near are names that begin with three or more letters of `name` ("batch-size" for "batch"), names
// with few letters changed, added, dropped or swapped (optimal string alignment, at most about a
// third), and names that `name` lengthens by a word ("epochs" for "num-epochs"), in this order. Of
// equally near ones, the same first letter and kept letters count. Ignores case, '_' is '-'.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

// Returns "; did you mean 'x'?" to end an error message, or "" if no name is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace ofsdp::base
