#include "kernels/ops/matmul/dft_extent.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kLongest = int64_t{1} << 31;

}  // namespace

Result<DftExtent> dft_extent(const Attributes& attributes, const TensorDesc& x,
                             std::optional<int64_t> length, int64_t axis) {
  const int rank = x.shape.rank();
  DftExtent e;
  e.inverse = attributes.i("inverse", 0) != 0;
  e.onesided = attributes.i("onesided", 0) != 0;
  e.x_parts = rank < 2 ? 0 : x.shape[rank - 1];
  const bool parts =
      e.onesided ? e.x_parts == (e.inverse ? 2 : 1) : e.x_parts == 1 || e.x_parts == 2;
  if (!parts) {
    return input_error("expected a signal [..., {}], found {}",
                       !e.onesided ? "1 or 2"
                       : e.inverse ? "2"
                                   : "1",
                       x.text());
  }
  OFSDP_ASSIGN_OR_RETURN(e.axis, normalize_axis(axis, rank));
  if (e.axis == rank - 1) {
    return input_error("axis {} of {} holds the parts of a number, expected one before it", axis,
                       x.text());
  }
  e.outer = x.shape.numel(0, e.axis);
  e.in = x.shape[e.axis];
  e.inner = x.shape.numel(e.axis + 1, rank - 1);
  e.n = length.value_or(e.makes_real() ? 2 * (e.in - 1) : e.in);
  if (e.n < 1 || e.n > kLongest) {
    return input_error("expected a dft_length of 1 to {}, found {} for {}", kLongest, e.n,
                       x.text());
  }
  e.out = e.onesided && !e.inverse ? e.half() : e.n;
  e.y_parts = e.makes_real() ? 1 : 2;
  return e;
}

std::vector<DftPass> dft_passes(int64_t n) {
  std::vector<DftPass> made;
  int64_t before = 1, rest = n;
  for (int64_t radix = 4; rest > 1;) {
    if (rest % radix == 0) {
      rest /= radix;
      made.push_back({radix, before, rest});
      before *= radix;
    } else {
      radix = radix == 4 ? 2 : radix == 2 ? 3 : radix * radix > rest ? rest : radix + 2;
    }
  }
  return made;
}

}  // namespace ofsdp::kernels::ops
