// Sums of squares of the device that counts: runtime/engine/exact_squares.h over pieces, added as whole numbers.
#include <cmath>
#include <limits>

#include "runtime/engine/exact_squares.h"
#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {
namespace {

int32_t add_exact_squares(ofsdp_device* device, ofsdp_stream* stream, const float* values,
                          int64_t count, ofsdp_exact_sum* sum) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  if (!device->holds(values, bytes, false, "squares") ||
      !device->holds(sum, sizeof(*sum), false, "an exact sum")) {
    return 1;
  }
  return device->put(stream, [=] {
    ExactSquares squares;
    squares.add({values, static_cast<size_t>(count)});
    const auto limbs = squares.limbs();
    if (std::isnan(limbs[0])) sum->not_finite = 1;
    for (size_t i = 0; i < limbs.size() && !std::isnan(limbs[0]); ++i) {
      sum->limbs[i] += static_cast<uint64_t>(limbs[i]);
    }
    return Status{};
  });
}

int32_t take_exact_sum(ofsdp_device* device, ofsdp_stream* stream, ofsdp_exact_sum* sum,
                       double* limbs) {
  if (!device->holds(sum, sizeof(*sum), false, "an exact sum") ||
      !device->holds(limbs, OFSDP_EXACT_LIMBS * sizeof(double), false, "limbs")) {
    return 1;
  }
  return device->put(stream, [=] {
    for (int i = 0; i < OFSDP_EXACT_LIMBS; ++i) limbs[i] = static_cast<double>(sum->limbs[i]);
    if (sum->not_finite != 0) limbs[0] = std::numeric_limits<double>::quiet_NaN();
    *sum = {};
    return Status{};
  });
}

int32_t exact_norm(ofsdp_device* device, ofsdp_stream* stream, const double* limbs,
                   ofsdp_run_state* state) {
  if (!device->holds(limbs, OFSDP_EXACT_LIMBS * sizeof(double), false, "limbs")) return 1;
  return device->put(stream, [=] {
    state->squared_norm = ExactSquares::sum({limbs, OFSDP_EXACT_LIMBS});
    return Status{};
  });
}

}  // namespace

void add_exact(ofsdp_device_table& table) {
  table.add_exact_squares = Locked<add_exact_squares>::call;
  table.take_exact_sum = Locked<take_exact_sum>::call;
  table.exact_norm = Locked<exact_norm>::call;
}

}  // namespace ofsdp::counting
