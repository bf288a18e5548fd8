// The table's exact sums of squares: kernels/cuda/training/exact_squares.h.
#include "kernels/cuda/device/handles.h"
#include "kernels/cuda/training/exact_squares.h"

namespace ofsdp::kernels::cuda {
namespace {

int32_t add_squares(ofsdp_device* device, ofsdp_stream* stream, const float* values, int64_t count,
                    ofsdp_exact_sum* sum) {
  return failed(device, add_exact_squares(values, count, sum, raw(stream)), "exact squares");
}

int32_t take_sum(ofsdp_device* device, ofsdp_stream* stream, ofsdp_exact_sum* sum, double* limbs) {
  return failed(device, take_exact_sum(sum, limbs, raw(stream)), "exact squares");
}

int32_t take_norm(ofsdp_device* device, ofsdp_stream* stream, const double* limbs,
                  ofsdp_run_state* state) {
  return failed(device, exact_norm(limbs, &state->squared_norm, raw(stream)), "exact squares");
}

}  // namespace

void add_exact(ofsdp_device_table& table) {
  table.add_exact_squares = add_squares;
  table.take_exact_sum = take_sum;
  table.exact_norm = take_norm;
}

}  // namespace ofsdp::kernels::cuda
