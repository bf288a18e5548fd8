// The names of an enum's values, in one table that parsing, manifests and reports share.
//
// An enum declares its table next to itself. The order of the rows is the order in which choices
// are listed to users.
//
//   enum class Mode { kOn, kOff };
//   OFSDP_ENUM_NAMES(Mode, {kOn, "on"}, {kOff, "off"})
//
//   name_of(Strategy::kZero1)            "zero1"; "?" for a value without a row
//   value_named<Strategy>("zero1")       Strategy::kZero1; nothing for an unknown name
//
// Names are literals.
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

// In the order of the table.
template <typename E>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (const EnumName<E>& row : enum_names(E{})) names.emplace_back(row.name);
  return names;
}

}  // namespace ofsdp::base
