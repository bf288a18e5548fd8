#include "kernels/ops/pool/average_pool_kernel.h"

#include "kernels/cpu/elementwise.h"

namespace ofsdp::kernels::ops {
namespace {

template <typename T>
[[gnu::always_inline]] inline void gather_row(const T* x, int64_t step, T* y, int64_t n) {
  if (step == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] += x[i];
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] += x[i * step];
  }
}

template <typename T>
[[gnu::always_inline]] inline void scatter_row(const T* dy, const T* scale, int64_t step, T* dx,
                                               int64_t n) {
  if (step == 0) {  // channels last: one scale
    const T s = *scale;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) dx[i] += dy[i] * s;
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) dx[i * step] += dy[i] * scale[i];
  }
}

OFSDP_MULTIARCH void gather_span(const float* x, int64_t step, float* y, int64_t n) {
  gather_row(x, step, y, n);
}
OFSDP_MULTIARCH void scatter_span(const float* dy, const float* scale, int64_t step, float* dx,
                                  int64_t n) {
  scatter_row(dy, scale, step, dx, n);
}
void gather_span(const double* x, int64_t step, double* y, int64_t n) { gather_row(x, step, y, n); }
void scatter_span(const double* dy, const double* scale, int64_t step, double* dx, int64_t n) {
  scatter_row(dy, scale, step, dx, n);
}

// Both directions walk the same spans: outputs of one tap that lie next to each other, positions of
// a row when plain, channels of a position when channels last.
template <typename T>
class Average {
 public:
  Average(const Problem& p, const TensorDesc& x)
      : window_(known_pool(p.attributes, x.shape)),
        last_(x.layout == Layout::kChannelsLast),
        channels_(last_ ? x.shape[1] : 1),
        items_(last_ ? x.shape[0] : x.shape.numel(0, 2)) {
    for (double s : average_scales(p.attributes, window_)) scales_.push_back(static_cast<T>(s));
  }

  Status forward(const T* x, T* y) const {
    const int64_t rows = window_.out[0] * window_.out[1];
    parallel_for(items_ * rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* src = x + i / rows * window_.in_size() * channels_;
        T* dst = y + i * window_.out[2] * channels_;
        std::fill_n(dst, window_.out[2] * channels_, T{0});
        for_spans(i % rows, [&](int64_t in, int64_t out, int64_t n) {
          gather_span(src + in * channels_, last_ ? 1 : window_.strides[2], dst + out * channels_,
                      n);
        });
        const T* scale = scales_.data() + i % rows * window_.out[2];
        for (int64_t k = 0; k < window_.out[2] * channels_; ++k) dst[k] *= scale[k / channels_];
      }
    });
    return ok_status();
  }

  Status backward(const T* dy, T* dx) const {
    const int64_t rows = window_.out[0] * window_.out[1];
    parallel_for(items_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* dst = dx + i * window_.in_size() * channels_;
        std::fill_n(dst, window_.in_size() * channels_, T{0});
        for (int64_t row = 0; row < rows; ++row) {
          const T* src = dy + (i * rows + row) * window_.out[2] * channels_;
          const T* scale = scales_.data() + row * window_.out[2];
          for_spans(row, [&](int64_t in, int64_t out, int64_t n) {
            scatter_span(src + out * channels_, scale + out, last_ ? 0 : window_.strides[2],
                         dst + in * channels_, n);
          });
        }
      }
    });
    return ok_status();
  }

 private:
  // f(position in x, place in the row of outputs, elements) for every tap of a row of outputs.
  template <typename F>
  void for_spans(int64_t row, const F& f) const {
    const Window& w = window_;
    const auto depths = tap_range(w, 0, row / w.out[1]);
    const auto heights = tap_range(w, 1, row % w.out[1]);
    for (int64_t d = depths.first; d < depths.second; ++d) {
      for (int64_t h = heights.first; h < heights.second; ++h) {
        const int64_t at = w.position(0, row / w.out[1], d) * w.in[1];
        for_columns((at + w.position(1, row % w.out[1], h)) * w.in[2], f);
      }
    }
  }

  template <typename F>
  void for_columns(int64_t in_row, const F& f) const {
    const Window& w = window_;
    for (int64_t v = 0; last_ && v < w.out[2]; ++v) {
      const auto [begin, end] = tap_range(w, 2, v);
      for (int64_t k = begin; k < end; ++k) f(in_row + w.position(2, v, k), v, channels_);
    }
    for (int64_t k = 0; !last_ && k < w.kernel[2]; ++k) {
      const int64_t first = w.position(2, 0, k), stride = w.strides[2];
      const int64_t begin = first >= 0 ? 0 : (-first + stride - 1) / stride;
      const int64_t room = w.in[2] - first;
      const int64_t end = std::min(w.out[2], room > 0 ? (room + stride - 1) / stride : 0);
      if (begin < end) f(in_row + w.position(2, begin, k), begin, end - begin);
    }
  }

  Window window_;
  bool last_;
  int64_t channels_;  // that lie next to each other: 1 when plain
  int64_t items_;     // images when channels last, else planes
  std::vector<T> scales_;
};

template <typename T>
std::unique_ptr<Kernel> make_forward(const Problem& p) {
  return make_kernel([average = Average<T>(p, p.in(0))](const KernelArgs& a) {
    return average.forward(a.in<T>(0), a.out<T>(0));
  });
}

template <typename T>
std::unique_ptr<Kernel> make_backward(const Problem& p) {
  return make_kernel([average = Average<T>(p, p.out(0))](const KernelArgs& a) {
    return average.backward(a.in<T>(0), a.out<T>(0));
  });
}

}  // namespace

std::vector<double> average_scales(const Attributes& attributes, const Window& w) {
  const bool padding = attributes.i("count_include_pad", 0) != 0;
  const auto counted = [&](size_t axis, int64_t o) {
    int64_t count = 0;
    for (int64_t k = 0; k < w.kernel[axis]; ++k) {
      const int64_t at = w.position(axis, o, k);
      const int64_t first = padding ? -w.pads_begin[axis] : 0;
      const int64_t end = w.in[axis] + (padding ? w.pads_end[axis] : 0);
      count += at >= first && at < end;
    }
    return count;
  };
  std::vector<double> made;
  for (int64_t o = 0; o < w.out_size(); ++o) {
    const int64_t count = counted(0, o / (w.out[1] * w.out[2])) *
                          counted(1, o / w.out[2] % w.out[1]) * counted(2, o % w.out[2]);
    made.push_back(count == 0 ? 0 : 1 / static_cast<double>(count));
  }
  return made;
}

std::unique_ptr<Kernel> make_average_pool(const Problem& p) {
  return p.in(0).dtype == DType::kFloat64 ? make_forward<double>(p) : make_forward<float>(p);
}

std::unique_ptr<Kernel> make_average_pool_grad(const Problem& p) {
  return p.in(0).dtype == DType::kFloat64 ? make_backward<double>(p) : make_backward<float>(p);
}

}  // namespace ofsdp::kernels::ops
