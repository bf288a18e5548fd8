// Convolutions by plain loops, in float64 and where no library has a kernel: see conv_shape.h.
#include "kernels/cpu/elementwise.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/pointwise/activation.h"

namespace ofsdp::kernels::ops {
namespace {

// An operand [N, C, spatial...] in its layout.
struct Planes {
  Planes(const TensorDesc& desc)
      : channels(desc.shape[1]),
        size(desc.shape.numel(2, desc.shape.rank())),
        last(desc.layout == Layout::kChannelsLast) {}
  int64_t at(int64_t n, int64_t c) const { return n * channels * size + (last ? c : c * size); }
  int64_t step() const { return last ? channels : 1; }

  int64_t channels, size;
  bool last;
};

template <typename T>
class ConvLoops {
 public:
  ConvLoops(const ConvShape& s, const TensorDesc& x, const TensorDesc& y)
      : s_(s), x_(x), y_(y), channels_(s.x[1] / s.group), outputs_(s.y[1] / s.group) {}

  void forward(const T* x, const T* w, const T* bias, T* y) const {
    const int64_t outputs = s_.y[1];
    parallel_each(s_.y[0] * outputs, 1, [&](int64_t i) {
      const int64_t n = i / outputs, m = i % outputs;
      T* plane = y + y_.at(n, m);
      fill(y_, plane, bias == nullptr ? T{0} : bias[m]);
      for (int64_t c = 0; c < channels_; ++c) {
        const T* src = x + x_.at(n, m / outputs_ * channels_ + c);
        const T* weights = w + weights_at(m, c);
        for_each_tap(s_.window, [&](int64_t out, int64_t tap, int64_t in) {
          plane[out * y_.step()] += weights[tap] * src[in * x_.step()];
        });
      }
    });
  }

  void grad_input(const T* dy, const T* w, T* dx) const {
    parallel_each(s_.x[0] * s_.x[1], 1, [&](int64_t i) {
      const int64_t n = i / s_.x[1], c = i % s_.x[1];
      T* plane = dx + x_.at(n, c);
      fill(x_, plane, T{0});
      const int64_t first = c / channels_ * outputs_;
      for (int64_t m = first; m < first + outputs_; ++m) {
        const T* src = dy + y_.at(n, m);
        const T* weights = w + weights_at(m, c % channels_);
        for_each_tap(s_.window, [&](int64_t out, int64_t tap, int64_t in) {
          plane[in * x_.step()] += weights[tap] * src[out * y_.step()];
        });
      }
    });
  }

  void grad_weights(const T* x, const T* dy, T* dw, T* db) const {
    parallel_each(s_.w[0], 1, [&](int64_t m) {
      std::fill_n(dw + weights_at(m, 0), channels_ * s_.window.taps(), T{0});
      if (db != nullptr) db[m] = 0;
      for (int64_t n = 0; n < s_.x[0]; ++n) image_of_weights(x, dy + y_.at(n, m), n, m, dw, db);
    });
  }

 private:
  void image_of_weights(const T* x, const T* dy, int64_t n, int64_t m, T* dw, T* db) const {
    for (int64_t c = 0; c < channels_; ++c) {
      const T* src = x + x_.at(n, m / outputs_ * channels_ + c);
      T* to = dw + weights_at(m, c);
      for_each_tap(s_.window, [&](int64_t out, int64_t tap, int64_t in) {
        to[tap] += src[in * x_.step()] * dy[out * y_.step()];
      });
    }
    for (int64_t i = 0; db != nullptr && i < y_.size; ++i) db[m] += dy[i * y_.step()];
  }

  int64_t weights_at(int64_t m, int64_t c) const { return (m * channels_ + c) * s_.window.taps(); }
  static void fill(const Planes& planes, T* plane, T value) {
    for (int64_t i = 0; i < planes.size; ++i) plane[i * planes.step()] = value;
  }

  ConvShape s_;
  Planes x_, y_;
  int64_t channels_, outputs_;  // of a group
};

template <typename T>
std::unique_ptr<Kernel> make_forward(const Problem& p) {
  const ConvLoops<T> loops(conv_of(p), p.in(0), p.out(0));
  return make_kernel([loops, bias = p.has_in(2)](const KernelArgs& a) {
    return loops.forward(a.in<T>(0), a.in<T>(1), bias ? a.in<T>(2) : nullptr, a.out<T>(0));
  });
}

template <typename T>
std::unique_ptr<Kernel> make_grad_input(const Problem& p) {
  return make_kernel(
      [loops = ConvLoops<T>(conv_of_grad(p.attributes), p.out(0), p.in(0))](const KernelArgs& a) {
        return loops.grad_input(a.in<T>(0), a.in<T>(1), a.out<T>(0));
      });
}

template <typename T>
std::unique_ptr<Kernel> make_grad_weights(const Problem& p) {
  const ConvLoops<T> loops(conv_of_grad(p.attributes), p.in(0), p.in(1));
  return make_kernel([loops, bias = p.has_out(1)](const KernelArgs& a) {
    return loops.grad_weights(a.in<T>(0), a.in<T>(1), a.out<T>(0), bias ? a.out<T>(1) : nullptr);
  });
}

bool is_double(const Problem& p) { return p.in(0).dtype == DType::kFloat64; }

}  // namespace

Acceptance accepts_conv_loops(const Problem& p) {
  if (has_relu(p.attributes)) return Acceptance::refuse("a fused activation");
  return accept_if(p.all_dtype(DType::kFloat64) || p.all_dtype(DType::kFloat32),
                   "not all float32 or all float64");
}

std::unique_ptr<Kernel> make_conv_loops(const Problem& p) {
  return is_double(p) ? make_forward<double>(p) : make_forward<float>(p);
}

std::unique_ptr<Kernel> make_conv_grad_input_loops(const Problem& p) {
  return is_double(p) ? make_grad_input<double>(p) : make_grad_input<float>(p);
}

std::unique_ptr<Kernel> make_conv_grad_weights_loops(const Problem& p) {
  return is_double(p) ? make_grad_weights<double>(p) : make_grad_weights<float>(p);
}

}  // namespace ofsdp::kernels::ops
