// Sums of squares on the counting device: kernels/optimizers/squares.h over pieces, added as whole
// numbers.
#include <cmath>
#include <limits>

#include "kernels/optimizers/squares.h"
#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {

Status CountingDevice::add_exact_squares(ofsdp_stream* stream, const float* values, int64_t count,
                                         ofsdp_exact_sum* sum) {
  const std::lock_guard lock(mutex);
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  if (!holds(values, bytes, false, "squares") || !holds(sum, sizeof(*sum), false, "an exact sum")) {
    return refused();
  }
  return put(stream, [=] {
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

Status CountingDevice::take_exact_sum(ofsdp_stream* stream, ofsdp_exact_sum* sum, double* limbs) {
  const std::lock_guard lock(mutex);
  if (!holds(sum, sizeof(*sum), false, "an exact sum") ||
      !holds(limbs, OFSDP_EXACT_LIMBS * sizeof(double), false, "limbs")) {
    return refused();
  }
  return put(stream, [=] {
    for (int i = 0; i < OFSDP_EXACT_LIMBS; ++i) limbs[i] = static_cast<double>(sum->limbs[i]);
    if (sum->not_finite != 0) limbs[0] = std::numeric_limits<double>::quiet_NaN();
    *sum = {};
    return Status{};
  });
}

Status CountingDevice::exact_norm(ofsdp_stream* stream, const double* limbs,
                                  ofsdp_run_state* state) {
  const std::lock_guard lock(mutex);
  if (!holds(limbs, OFSDP_EXACT_LIMBS * sizeof(double), false, "limbs")) return refused();
  return put(stream, [=] {
    state->squared_norm = ExactSquares::sum({limbs, OFSDP_EXACT_LIMBS});
    return Status{};
  });
}

}  // namespace ofsdp::counting
