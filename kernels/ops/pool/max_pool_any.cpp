// MaxPool by plain loops, for the types that are rare: see max_pool_kernel.h.
#include <limits>

#include "kernels/cpu/elementwise.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/pool/max_pool_kernel.h"
#include "kernels/ops/pool/pool_shape.h"

namespace ofsdp::kernels::ops {
namespace {

template <typename T>
class AnyMaxPool {
 public:
  explicit AnyMaxPool(const Problem& p)
      : window_(known_pool(p.attributes, p.in(0).shape)),
        planes_(p.in(0).shape.numel(0, 2)),
        channels_(p.in(0).layout == Layout::kChannelsLast ? p.in(0).shape[1] : 1),
        column_major_(p.attributes.i("storage_order", 0) != 0),
        indices_(p.has_out(1)),
        winners_(p.has_out(2)),
        narrow_(winner_dtype(window_.taps()) == DType::kUInt8) {}

  Status operator()(const KernelArgs& a) const {
    parallel_for(planes_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) plane(a, p);
    });
    return ok_status();
  }

 private:
  void plane(const KernelArgs& a, int64_t p) const {
    const Window& w = window_;
    const int64_t image = p / channels_ * channels_, channel = p % channels_;
    const T* x = a.in<T>(0) + image * w.in_size() + channel;
    T* y = a.out<T>(0) + image * w.out_size() + channel;
    int64_t current = -1;  // the output whose taps come
    const auto start = [&](int64_t out) {
      while (current < out) {
        ++current;
        y[current * channels_] = std::numeric_limits<T>::has_infinity
                                     ? -std::numeric_limits<T>::infinity()
                                     : std::numeric_limits<T>::lowest();
        store(a, p, current, kNoWinner, 0);
      }
    };
    bool found = false;
    for_each_tap(w, [&](int64_t out, int64_t tap, int64_t in) {
      if (out != current) found = false;
      start(out);
      const T v = x[in * channels_];
      T& best = y[out * channels_];
      if (found && !(v > best) && v == v) return;
      found = true;
      best = v;
      store(a, p, out, tap, in);
    });
    start(w.out_size() - 1);
  }

  // Indices is plain whatever the layout of y.
  void store(const KernelArgs& a, int64_t p, int64_t out, int64_t tap, int64_t in) const {
    const Window& w = window_;
    const int64_t place = p * w.in_size() + stored_place(w, in, column_major_);
    if (indices_) a.out<int64_t>(1)[p * w.out_size() + out] = place;
    const int64_t at = (p / channels_ * w.out_size() + out) * channels_ + p % channels_;
    if (winners_ && narrow_) a.out<uint8_t>(2)[at] = static_cast<uint8_t>(tap);
    if (winners_ && !narrow_) a.out<int32_t>(2)[at] = static_cast<int32_t>(tap);
  }

  Window window_;
  int64_t planes_, channels_;
  bool column_major_, indices_, winners_, narrow_;
};

}  // namespace

bool accepts_max_pool_loops(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  const bool known = dtype == DType::kFloat64 || dtype == DType::kInt8 || dtype == DType::kUInt8;
  return known && p.out(0).layout == p.in(0).layout && !has_relu(p.attributes) &&
         (!p.has_out(2) || p.out(2).layout == p.in(0).layout) &&
         (!p.has_out(1) || p.out(1).layout == Layout::kPlain);
}

std::unique_ptr<Kernel> make_max_pool_loops(const Problem& p) {
  if (p.in(0).dtype == DType::kFloat64) return make_kernel(AnyMaxPool<double>(p));
  if (p.in(0).dtype == DType::kInt8) return make_kernel(AnyMaxPool<int8_t>(p));
  return make_kernel(AnyMaxPool<uint8_t>(p));
}

}  // namespace ofsdp::kernels::ops
