#include "tests/nodes/compare.h"

#include <cmath>

#include "tests/support/namespaces.h"

namespace ofsdp::nodes {
namespace {

bool close(double found, double expected, double relative) {
  if (std::isnan(expected)) return std::isnan(found);
  return found == expected || std::abs(found - expected) <= 1e-7 + relative * std::abs(expected);
}

// NaN has more than one code in some types, so codes are compared, not values.
Status different_codes(const Constant& found, const Constant& expected) {
  for (size_t i = 0; i < found.bytes.size(); ++i) {
    if (found.bytes[i] == expected.bytes[i]) continue;
    return input_error("element {} of {}: expected code {}, found {}", i, found.desc.text(),
                       std::to_integer<int>(expected.bytes[i]),
                       std::to_integer<int>(found.bytes[i]));
  }
  return {};
}

}  // namespace

Status compare(const Constant& found, const Constant& expected) {
  if (found.desc.dtype != expected.desc.dtype || found.desc.shape != expected.desc.shape) {
    return input_error("expected {}, found {}", expected.desc.text(), found.desc.text());
  }
  if (!is_floating(found.desc.dtype)) {
    if (found.bytes == expected.bytes) return {};
  }
  if (is_narrow(found.desc.dtype)) return different_codes(found, expected);
  const double relative = found.desc.dtype == DType::kBFloat16 ? 0x1p-6 : 1e-3;
  const auto a = to_doubles(found.desc, found.bytes.data());
  const auto b = to_doubles(expected.desc, expected.bytes.data());
  size_t wrong = 0, first = 0;
  for (size_t i = a.size(); i-- > 0;) {
    const bool good = is_floating(found.desc.dtype) ? close(a[i], b[i], relative) : a[i] == b[i];
    if (!good) ++wrong, first = i;
  }
  if (wrong == 0) {
    if (is_floating(found.desc.dtype)) return {};
    return input_error("equal as numbers, but not in bytes");
  }
  return input_error("element {} of {}: expected {}, found {} ({} differ)", first,
                     found.desc.text(), b[first], a[first], wrong);
}

}  // namespace ofsdp::nodes
