// DFT(x [..., 1 or 2 parts], dft_length, axis), attributes inverse, onesided: transforms along an
// axis before the last. With n = dft_length (x's axis is cut or filled up with zeros) and w = e^(-2
// pi i / n)
//
//   y_k = sum over j of x_j w^(jk)             all n of a complex y; onesided: the first n/2 + 1
//   y_k = sum over j of x_j w^(-jk) / n        inverse
//   y_k = the same, real, from x_0 .. x_(n/2)  inverse and onesided; x_(n-j) is conj x_j
//
// Each is linear, so dx is the transpose: n times the inverse of dy; for an inverse, DFT(dy) / n;
// for an inverse and onesided, the first n/2 + 1 elements of DFT(dy) / n, doubled except at j = 0
// and n/2. A real x takes the real parts.
// https://onnx.ai/onnx/operators/onnx__DFT.html

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <optional>

#include "kernels/core/memory.h"
#include "kernels/core/op_def.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/matmul/dft_extent.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace dft {

using Extent = DftExtent;

Result<int64_t> known_scalar(const InferContext& c, size_t i, const char* name) {
  OFSDP_ASSIGN_OR_RETURN(const auto values, known_ints(c, i, name));
  if (values.size() == 1) return values[0];
  return input_error("input '{}': expected one number, found {}", name, values.size());
}

Result<Extent> extent_of(const InferContext& c) {
  std::optional<int64_t> length;
  int64_t axis = -2;
  if (c.has(1)) {
    OFSDP_ASSIGN_OR_RETURN(length, known_scalar(c, 1, "dft_length"));
  }
  if (c.has(2)) {
    OFSDP_ASSIGN_OR_RETURN(axis, known_scalar(c, 2, "axis"));
  }
  return dft_extent(c.attributes, c.inputs[0], length, axis);
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Extent e, extent_of(c));
  std::vector<int64_t> y = c.inputs[0].shape.axes();
  y[static_cast<size_t>(e.axis)] = e.out;
  y.back() = e.y_parts;
  return std::vector{TensorDesc{c.inputs[0].dtype, Shape(y)}};
}

// --- gradient ---

// Returns, along the axis, the weight of each of the first n/2 + 1 elements in a real result,
// divided by n.
Ref half_weights(GradBuilder& b, const Extent& e, const TensorDesc& dy) {
  std::vector<int64_t> shape(static_cast<size_t>(dy.shape.rank()), 1);
  shape[static_cast<size_t>(e.axis)] = e.half();
  std::vector<double> weights(static_cast<size_t>(e.half()), 2 / static_cast<double>(e.n));
  weights.front() = 1 / static_cast<double>(e.n);
  if (e.n % 2 == 0) weights.back() = 1 / static_cast<double>(e.n);
  const TensorDesc desc{dy.dtype, Shape(shape)};
  std::vector<std::byte> bytes(desc.bytes());
  from_doubles(weights, desc, bytes.data());
  return b.constant(std::make_shared<const Constant>(Constant{desc, std::move(bytes)}));
}

// Cuts the axis, or pads it with zeros, to x's size.
Ref fit(GradBuilder& b, const Extent& e, Ref dx) {
  const Shape& shape = b.desc(dx).shape;
  const int64_t size = shape[e.axis];
  if (size > e.in) return b.slice(dx, e.axis, 0, e.in);
  if (size == e.in) return dx;
  std::vector<int64_t> pads(2 * static_cast<size_t>(shape.rank()), 0);
  pads[static_cast<size_t>(shape.rank() + e.axis)] = e.in - size;
  return b.emit1("Pad", {dx, b.ints(pads)});
}

void grad(GradBuilder& b) {
  const Extent e = *extent_of(context_of(b));
  const Ref dy = b.grad_output(0);
  const Ref n = b.scalar(DType::kInt64, static_cast<double>(e.n));
  const Ref axis = b.scalar(DType::kInt64, e.axis);
  Ref dx = b.emit1("DFT", {dy, n, axis},
                   {{"inverse", int64_t{!e.inverse}}, {"onesided", int64_t{e.makes_real()}}});
  const auto count = static_cast<double>(e.n);
  const Ref scale =
      e.makes_real() ? half_weights(b, e, b.desc(dy)) : b.like(dx, e.inverse ? 1 / count : count);
  dx = fit(b, e, b.mul(dx, scale));
  const int64_t parts = b.desc(dx).shape.rank() - 1;
  b.set_grad(0, e.x_parts == 2 ? dx : b.slice(dx, parts, 0, 1));
}

// --- reference: the sums above ---

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto number = [&](size_t i) -> std::optional<int64_t> {
    const RefTensor* found = given(c.inputs, i);
    return found == nullptr ? std::nullopt : std::optional(static_cast<int64_t>((*found)[0]));
  };
  const RefTensor& x = c.inputs[0];
  const Extent e = *dft_extent(c.attributes, x.desc, number(1), number(2).value_or(-2));
  RefTensor y = zeros(c.output_descs[0]);
  const auto read = [&](int64_t o, int64_t j, int64_t i) -> std::complex<double> {
    if (j >= e.used()) return 0;
    const int64_t at = ((o * e.in + j) * e.inner + i) * e.x_parts;
    return {x[at], e.x_parts == 2 ? x[at + 1] : 0};
  };
  for (int64_t at = 0; at < y.desc.numel() / e.y_parts; ++at) {
    const int64_t o = at / (e.inner * e.out), k = at / e.inner % e.out, i = at % e.inner;
    std::complex<double> sum = 0;
    for (int64_t j = 0; j < e.n; ++j) {
      const bool mirrored = e.makes_real() && j >= e.half();
      const double turn = static_cast<double>(j * k % e.n) / static_cast<double>(e.n);
      const auto value = mirrored ? std::conj(read(o, e.n - j, i)) : read(o, j, i);
      sum += value * std::polar(1.0, (e.inverse ? 2 : -2) * std::numbers::pi * turn);
    }
    if (e.inverse) sum /= static_cast<double>(e.n);
    y[at * e.y_parts] = sum.real();
    if (e.y_parts == 2) y[at * 2 + 1] = sum.imag();
  }
  return {y};
}

// --- kernel: Stockham's transform, a pass per factor of n, on several lines at once. It runs in
// double: sums cancel, and float32 would leave 1e-7 of the largest term if the result is 0. ---

// Complex numbers for several lines: real parts [position, line], then imaginary parts.
struct Lines {
  double *real, *imaginary;
};

namespace {

// to += w from, with w = c + i s.
OFSDP_MULTIARCH void add_turned(const Lines& from, double c, double s, int64_t count,
                                const Lines& to) {
  const double *re = from.real, *im = from.imaginary;
  double *to_re = to.real, *to_im = to.imaginary;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    to_re[i] += c * re[i] - s * im[i];
    to_im[i] += c * im[i] + s * re[i];
  }
}

}  // namespace

template <typename T>
class Transform final : public Kernel {
 public:
  explicit Transform(const Extent& e) : e_(e), passes_(dft_passes(e.n)) {
    for (int64_t k = 0; k < e.n; ++k) {
      const double turn = static_cast<double>(k) / static_cast<double>(e.n);
      const double angle = (e.inverse ? 2 : -2) * std::numbers::pi * turn;
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
    const int64_t lines = e.outer * e.inner;
    width_ = std::clamp<int64_t>(std::min(kCached / e.n, lines), 1, kMaxLines);
    groups_ = (lines + width_ - 1) / width_;
    const int64_t most = std::min<int64_t>(groups_, pool_threads());
    parts_ = most == 0 ? 0 : std::clamp<int64_t>(lines * e.n / 4096, 1, most);
    part_bytes_ =
        align_up(static_cast<size_t>(4 * width_ * e.n) * sizeof(double), kTensorAlignment);
  }

  size_t workspace_bytes() const override { return static_cast<size_t>(parts_) * part_bytes_; }

  Status run(const KernelArgs& a) override {
    parallel_each(parts_, 1, [&](int64_t part) {
      double* buffer =
          reinterpret_cast<double*>(a.workspace + static_cast<size_t>(part) * part_bytes_);
      const int64_t size = width_ * e_.n;
      Lines from{buffer, buffer + size}, to{buffer + 2 * size, buffer + 3 * size};
      for (int64_t g = groups_ * part / parts_; g < groups_ * (part + 1) / parts_; ++g) {
        load(a.in<T>(0), g, from);
        for (const DftPass& pass : passes_) {
          run_pass(pass, from, to);
          std::swap(from, to);
        }
        store(from, g, a.out<T>(0));
      }
    });
    return ok_status();
  }

 private:
  static constexpr int64_t kMaxLines = 16, kCached = 1 << 15;

  // Calls f(line, outer index, inner index) for each line in a group.
  void for_each_line(int64_t group, const auto& f) const {
    const int64_t first = group * width_;
    const int64_t count = std::min(width_, e_.outer * e_.inner - first);
    for (int64_t l = 0; l < count; ++l) {
      f(l, (first + l) / e_.inner, (first + l) % e_.inner);
    }
  }

  void load(const T* x, int64_t group, const Lines& to) const {
    std::fill_n(to.real, 2 * width_ * e_.n, 0.0);
    for_each_line(group, [&](int64_t l, int64_t o, int64_t i) {
      for (int64_t j = 0; j < e_.used(); ++j) {
        const T* from = x + ((o * e_.in + j) * e_.inner + i) * e_.x_parts;
        to.real[j * width_ + l] = from[0];
        if (e_.x_parts == 2) to.imaginary[j * width_ + l] = from[1];
      }
    });
    if (!e_.makes_real()) return;
    for (int64_t j = e_.half(); j < e_.n; ++j) {
      for (int64_t l = 0; l < width_; ++l) {
        to.real[j * width_ + l] = to.real[(e_.n - j) * width_ + l];
        to.imaginary[j * width_ + l] = -to.imaginary[(e_.n - j) * width_ + l];
      }
    }
  }

  void run_pass(const DftPass& pass, const Lines& from, const Lines& to) const {
    const int64_t span = pass.before * width_;
    std::fill_n(to.real, 2 * width_ * e_.n, 0.0);
    for (int64_t p = 0; p < pass.after; ++p) {
      for (int64_t k = 0; k < pass.radix; ++k) {
        const int64_t at = (pass.radix * p + k) * span;
        const int64_t step = k * (e_.n / pass.radix) % e_.n;
        int64_t turn = k * p % e_.n * pass.before % e_.n;
        for (int64_t j = 0; j < pass.radix; ++j) {
          const int64_t source = (p + pass.after * j) * span;
          const auto w = static_cast<size_t>(turn);
          add_turned({from.real + source, from.imaginary + source}, cos_[w], sin_[w], span,
                     {to.real + at, to.imaginary + at});
          turn += step;
          if (turn >= e_.n) turn -= e_.n;
        }
      }
    }
  }

  void store(const Lines& from, int64_t group, T* y) const {
    const double scale = e_.inverse ? 1 / static_cast<double>(e_.n) : 1;
    for_each_line(group, [&](int64_t l, int64_t o, int64_t i) {
      for (int64_t k = 0; k < e_.out; ++k) {
        T* to = y + ((o * e_.out + k) * e_.inner + i) * e_.y_parts;
        to[0] = static_cast<T>(scale * from.real[k * width_ + l]);
        if (e_.y_parts == 2) to[1] = static_cast<T>(scale * from.imaginary[k * width_ + l]);
      }
    });
  }

  Extent e_;
  std::vector<DftPass> passes_;
  std::vector<double> cos_, sin_;
  int64_t width_ = 1, groups_ = 0, parts_ = 0;
  size_t part_bytes_ = 0;
};

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return std::make_unique<Transform<T>>(*extent_of(context_of(p)));
}

}  // namespace dft

void add_dft(Registry& registry) {
  using namespace dft;
  registry.add(make_op("DFT", {infer, grad, reference},
                       float_kernels<accepts_plain_first_of<float>, create<float>,
                                     accepts_plain_first_of<double>, create<double>>("passes"),
                       {.first_opset = 17, .constant_inputs = {1, 2}}));
}

// STFT(signal [B, T, 1 or 2 parts], frame_step, window, frame_length), attribute onesided (1): the
// DFT of each frame times the window. Frames have frame_length samples and begin frame_step apart.
// The result is [B, frames, frame_length or frame_length / 2 + 1, 2]. Without a frame_length the
// window gives it, else the signal.
//
// It has no kernel: the body takes the frames with Gather, multiplies and calls DFT.
// https://onnx.ai/onnx/operators/onnx__STFT.html

namespace stft {
namespace {

struct Frames {
  int64_t step, length, count;
  bool onesided;

  int64_t bins() const { return onesided ? length / 2 + 1 : length; }
};

Result<Frames> frames_of(const Attributes& attributes, const TensorDesc& signal, int64_t step,
                         int64_t length) {
  Frames f{step, length, 0, attributes.i("onesided", 1) != 0};
  const Shape& x = signal.shape;
  if (x.rank() != 3 || x[2] < 1 || x[2] > (f.onesided ? 1 : 2)) {
    return input_error("expected a signal [batch, length, {}], found {}",
                       f.onesided ? "1" : "1 or 2", signal.text());
  }
  if (step < 1 || length < 1 || length > x[1]) {
    return input_error(
        "expected a frame_step of 1 or more and a frame_length of 1 to {}, found {} and {}", x[1],
        step, length);
  }
  f.count = (x[1] - length) / step + 1;
  return f;
}

// `number(i, otherwise)` returns input i's only value.
Result<Frames> frames_by(const Attributes& attributes, const TensorDesc& signal,
                         const TensorDesc& window, const auto& number) {
  const int64_t otherwise = window.present()          ? window.numel()
                            : signal.shape.rank() > 1 ? signal.shape[1]
                                                      : 0;
  OFSDP_ASSIGN_OR_RETURN(const int64_t step, number(1, int64_t{0}));
  OFSDP_ASSIGN_OR_RETURN(const int64_t length, number(3, otherwise));
  if (!window.present() || window.shape == Shape{length}) {
    return frames_of(attributes, signal, step, length);
  }
  return input_error("expected a window [{}], found {}", length, window.text());
}

Result<Frames> frames_of(const InferContext& c) {
  const TensorDesc window = c.has(2) ? c.inputs[2] : TensorDesc{};
  return frames_by(
      c.attributes, c.inputs[0], window, [&](size_t i, int64_t otherwise) -> Result<int64_t> {
        if (!c.has(i)) return otherwise;
        OFSDP_ASSIGN_OR_RETURN(const auto values,
                               known_ints(c, i, i == 1 ? "frame_step" : "frame_length"));
        if (values.size() == 1) return values[0];
        return input_error("expected one number, found {}", values.size());
      });
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Frames f, frames_of(c));
  const TensorDesc& x = c.inputs[0];
  return std::vector{TensorDesc{x.dtype, {x.shape[0], f.count, f.bins(), 2}}};
}

void body(BodyBuilder& b) {
  const Ref signal = b.input(0), window = b.input(2);
  const Shape x = b.desc(signal).shape;
  const Frames f =
      *frames_by(b.attributes(), b.desc(signal), window ? b.desc(window) : TensorDesc{},
                 [&](size_t i, int64_t otherwise) -> Result<int64_t> {
                   const Ref number = b.input(i);
                   return number ? (*int_values(*b.constant_value(number)))[0] : otherwise;
                 });
  std::vector<int64_t> places;
  for (int64_t i = 0; i < f.count * f.length; ++i) {
    places.push_back(i / f.length * f.step + i % f.length);
  }
  const Ref taken = b.emit1("Gather", {signal, b.ints(places)}, {{"axis", int64_t{1}}});
  Ref frames = b.reshape(taken, {x[0], f.count, f.length, x[2]});
  if (window) frames = b.mul(frames, b.reshape(window, {f.length, 1}));
  const Ref axis = b.scalar(DType::kInt64, 2);
  b.set_output(0, b.emit1("DFT", {frames, Ref{}, axis}, {{"onesided", int64_t{f.onesided}}}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor &x = c.inputs[0], *window = given(c.inputs, 2);
  const Frames f =
      *frames_by(c.attributes, x.desc, window == nullptr ? TensorDesc{} : window->desc,
                 [&](size_t i, int64_t otherwise) -> Result<int64_t> {
                   const RefTensor* found = given(c.inputs, i);
                   return found == nullptr ? otherwise : static_cast<int64_t>((*found)[0]);
                 });
  RefTensor y = zeros(c.output_descs[0]);
  const int64_t parts = x.desc.shape[2];
  for (int64_t at = 0; at < y.desc.numel() / 2; ++at) {
    const int64_t bin = at % f.bins(), frame = at / f.bins() % f.count,
                  batch = at / f.bins() / f.count;
    std::complex<double> sum = 0;
    for (int64_t j = 0; j < f.length; ++j) {
      const int64_t from = (batch * x.desc.shape[1] + frame * f.step + j) * parts;
      const std::complex<double> value(x[from], parts == 2 ? x[from + 1] : 0);
      const double turn = static_cast<double>(bin * j % f.length) / static_cast<double>(f.length);
      sum += value * (window == nullptr ? 1 : (*window)[j]) *
             std::polar(1.0, -2 * std::numbers::pi * turn);
    }
    y[2 * at] = sum.real();
    y[2 * at + 1] = sum.imag();
  }
  return {y};
}

}  // namespace
}  // namespace stft

void add_stft(Registry& registry) {
  using namespace stft;
  registry.add(
      make_op("STFT", {infer, nullptr, reference}, {},
              {.min_inputs = 2, .first_opset = 17, .body = body, .constant_inputs = {1, 3}}));
}

}  // namespace ofsdp::kernels::ops
