// Convolutions as matrix products, for builds without oneDNN.
//
// [Note: columns] For one image and group, row p of the columns holds the inputs under the window
// at output position p: C/group channels per tap, zeros in the padding. With the weights in the
// same order, W [M/group, taps x C/group]:
//
//   y = columns W^T + b        d columns = dy W, added into dx where they came from
//   dW = the sum over images of dy^T columns
//
// Images are channels last inside; plain operands are transposed image by image. A one-tap window
// without strides and pads needs no columns: the image already has that form.
#include <algorithm>
#include <optional>

#include "kernels/core/memory.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/pointwise/activation.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kGrain = 4096;  // column elements that are worth a thread

// Calls f(tap index, counted over all positions; input position, or -1 in the padding) for
// positions begin to end - 1.
void for_each_place(const Window& w, int64_t begin, int64_t end, const auto& f) {
  int64_t place = begin * w.taps();
  for (int64_t p = begin; p < end; ++p) {
    const int64_t d = p / (w.out[1] * w.out[2]), h = p / w.out[2] % w.out[1], v = p % w.out[2];
    for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
      const int64_t id = w.position(0, d, kd);
      for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
        const int64_t ih = w.position(1, h, kh);
        const bool inside = id >= 0 && id < w.in[0] && ih >= 0 && ih < w.in[1];
        for (int64_t kv = 0; kv < w.kernel[2]; ++kv, ++place) {
          const int64_t iw = w.position(2, v, kv);
          const bool seen = inside && iw >= 0 && iw < w.in[2];
          f(place, seen ? (id * w.in[1] + ih) * w.in[2] + iw : int64_t{-1});
        }
      }
    }
  }
}

// Reads and writes the images in an operand [N, C, spatial...] channels last, whatever the layout.
class Images {
 public:
  Images(const TensorDesc& desc, size_t& workspace)
      : channels_(desc.shape[1]), size_(desc.shape.numel(2, desc.shape.rank())), place_(workspace) {
    if (desc.layout == Layout::kChannelsLast) return;
    const Shape shape{channels_, size_};
    const std::vector<int64_t> plain{size_, 1}, last{1, channels_};
    turn_.emplace(shape, plain, last, sizeof(float));
    turn_back_.emplace(shape, last, plain, sizeof(float));
    workspace += align_up(static_cast<size_t>(numel()) * sizeof(float), kTensorAlignment);
  }

  int64_t numel() const { return channels_ * size_; }

  const float* read(const float* operand, int64_t n, std::byte* workspace) const {
    if (!turn_) return operand + n * numel();
    turn_->run(reinterpret_cast<const std::byte*>(operand + n * numel()), workspace + place_);
    return reinterpret_cast<const float*>(workspace + place_);
  }
  // Returns the memory for image n. The caller fills it, then calls done.
  float* write(float* operand, int64_t n, std::byte* workspace) const {
    return turn_ ? reinterpret_cast<float*>(workspace + place_) : operand + n * numel();
  }
  void done(float* operand, int64_t n, std::byte* workspace) const {
    if (!turn_) return;
    turn_back_->run(workspace + place_, reinterpret_cast<std::byte*>(operand + n * numel()));
  }

 private:
  int64_t channels_, size_;
  size_t place_;  // offset in the workspace
  std::optional<StridedCopy> turn_, turn_back_;
};

class ConvColumns {
 public:
  ConvColumns(const ConvShape& s, const TensorDesc& x, const TensorDesc& y)
      : s_(s),
        channels_(s.x[1] / s.group),
        outputs_(s.y[1] / s.group),
        inner_(s.window.taps() * channels_),
        x_(x, bytes_),
        y_(y, bytes_) {
    const Window& w = s.window;
    is_image_ = w.taps() == 1 && w.in == w.out && w.strides == Window::Axes{1, 1, 1} &&
                w.pads_begin == Window::Axes{0, 0, 0};
    const Shape shape{s.w[0], channels_, w.taps()};
    const std::vector<int64_t> given{inner_, w.taps(), 1}, turned{inner_, 1, channels_};
    turn_.emplace(shape, given, turned, sizeof(float));
    turn_back_.emplace(shape, turned, given, sizeof(float));
    weights_ = reserve(s.w.numel(), sizeof(float));
    columns_ = reserve(is_image_ ? 0 : w.out_size() * inner_, sizeof(float));
    sums_ = reserve(s.w[0], sizeof(double));
  }

  size_t workspace_bytes() const { return bytes_; }

  void forward(const float* x, const float* w, const float* bias, float* y,
               std::byte* workspace) const {
    const float* weights = turned_weights(w, workspace);
    for (int64_t n = 0; n < s_.x[0]; ++n) {
      const float* src = x_.read(x, n, workspace);
      float* dst = y_.write(y, n, workspace);
      if (bias != nullptr) lay_bias(bias, dst);
      for (int64_t g = 0; g < s_.group; ++g) {
        blas_product_by_parts({positions(), inner_, outputs_}, 1.0f, gather(src, g, workspace),
                              {weights + g * outputs_ * inner_, inner_, true}, bias != nullptr,
                              dst + g * outputs_, s_.y[1]);
      }
      y_.done(y, n, workspace);
    }
  }

  void grad_input(const float* dy, const float* w, float* dx, std::byte* workspace) const {
    const float* weights = turned_weights(w, workspace);
    for (int64_t n = 0; n < s_.x[0]; ++n) {
      const float* src = y_.read(dy, n, workspace);
      float* dst = x_.write(dx, n, workspace);
      if (!is_image_) std::fill_n(dst, x_.numel(), 0.0f);
      for (int64_t g = 0; g < s_.group; ++g) {
        float* const to = is_image_ ? dst + g * channels_ : floats(workspace, columns_);
        blas_product_by_parts({positions(), outputs_, inner_}, 1.0f,
                              {src + g * outputs_, s_.y[1], false},
                              {weights + g * outputs_ * inner_, inner_, false}, false, to,
                              is_image_ ? s_.x[1] : inner_);
        if (!is_image_) scatter(to, dst + g * channels_);
      }
      x_.done(dx, n, workspace);
    }
  }

  void grad_weights(const float* x, const float* dy, float* dw, float* db,
                    std::byte* workspace) const {
    float* const weights = floats(workspace, weights_);
    auto* const sums = reinterpret_cast<double*>(workspace + sums_);
    std::fill_n(sums, s_.w[0], 0.0);
    for (int64_t n = 0; n < s_.x[0]; ++n) {
      const float* src = x_.read(x, n, workspace);
      const float* diff = y_.read(dy, n, workspace);
      for (int64_t g = 0; g < s_.group; ++g) {
        blas_product_by_parts({outputs_, positions(), inner_}, 1.0f,
                              {diff + g * outputs_, s_.y[1], true}, gather(src, g, workspace),
                              n > 0, weights + g * outputs_ * inner_, inner_);
      }
      for (int64_t i = 0; db != nullptr && i < positions(); ++i) {
        for (int64_t m = 0; m < s_.w[0]; ++m) sums[m] += diff[i * s_.w[0] + m];
      }
    }
    turn_back_->run(workspace + weights_, reinterpret_cast<std::byte*>(dw));
    for (int64_t m = 0; db != nullptr && m < s_.w[0]; ++m) db[m] = static_cast<float>(sums[m]);
  }

 private:
  size_t reserve(int64_t count, size_t element) {
    const size_t place = bytes_;
    bytes_ += align_up(static_cast<size_t>(count) * element, kTensorAlignment);
    return place;
  }
  static float* floats(std::byte* workspace, size_t place) {
    return reinterpret_cast<float*>(workspace + place);
  }
  int64_t positions() const { return s_.window.out_size(); }
  int64_t grain() const { return kGrain / inner_ + 1; }

  const float* turned_weights(const float* w, std::byte* workspace) const {
    turn_->run(reinterpret_cast<const std::byte*>(w), workspace + weights_);
    return floats(workspace, weights_);
  }

  void lay_bias(const float* bias, float* y) const {
    for (int64_t i = 0; i < positions(); ++i) std::copy_n(bias, s_.y[1], y + i * s_.y[1]);
  }

  // Gathers a group's columns.
  BlasFactor gather(const float* image, int64_t group, std::byte* workspace) const {
    const float* src = image + group * channels_;
    if (is_image_) return {src, s_.x[1], false};
    float* const to = floats(workspace, columns_);
    parallel_for(positions(), grain(), [&](int64_t begin, int64_t end) {
      for_each_place(s_.window, begin, end, [&](int64_t place, int64_t in) {
        if (in < 0) {
          std::fill_n(to + place * channels_, channels_, 0.0f);
        } else {
          std::copy_n(src + in * s_.x[1], channels_, to + place * channels_);
        }
      });
    });
    return {to, inner_, false};
  }

  // Threads split the channels, because windows overlap.
  void scatter(const float* columns, float* image) const {
    parallel_for(channels_, kGrain / (positions() * s_.window.taps()) + 1,
                 [&](int64_t begin, int64_t end) {
                   for_each_place(s_.window, 0, positions(), [&](int64_t place, int64_t in) {
                     if (in < 0) return;
                     const float* from = columns + place * channels_;
                     float* to = image + in * s_.x[1];
                     for (int64_t c = begin; c < end; ++c) to[c] += from[c];
                   });
                 });
  }

  ConvShape s_;
  int64_t channels_, outputs_, inner_;  // inputs and outputs per group; column width
  size_t bytes_ = 0;
  Images x_, y_;
  bool is_image_ = false;
  std::optional<StridedCopy> turn_, turn_back_;  // weights to [M, taps, C/group], and back
  size_t weights_ = 0, columns_ = 0, sums_ = 0;  // offsets in the workspace
};

Acceptance accepts_columns(const Problem& p, const ConvShape& s) {
  if (!p.all_dtype(DType::kFloat32)) return Acceptance::refuse("not float32");
  return accept_with_blas(
      accept_if(blas_fits({s.window.out_size(), s.window.taps() * s.x[1], s.y[1]}),
                "an axis of 2^31 elements or more"));
}

}  // namespace

Acceptance columns_accept_conv(const Problem& p) {
  const ConvShape s = conv_of(p);
  if (s.w.numel() == 0 && p.out(0).numel() > 0) return Acceptance::refuse("empty weights");
  return accepts_columns(p, s);
}

std::unique_ptr<Kernel> make_columns_conv(const Problem& p) {
  if (p.out(0).numel() == 0) return make_kernel([](const KernelArgs&) {});
  const ConvColumns columns(conv_of(p), p.in(0), p.out(0));
  std::unique_ptr<Kernel> kernel = make_kernel(
      [columns, bias = p.has_in(2)](const KernelArgs& a) {
        columns.forward(a.in<float>(0), a.in<float>(1), bias ? a.in<float>(2) : nullptr,
                        a.out<float>(0), a.workspace);
      },
      columns.workspace_bytes());
  return has_relu(p.attributes) ? with_relu(std::move(kernel), p.out(0).numel())
                                : std::move(kernel);
}

Acceptance columns_accept_conv_grad(const Problem& p) {
  return accepts_columns(p, conv_of_grad(p.attributes));
}

std::unique_ptr<Kernel> make_columns_conv_grad_input(const Problem& p) {
  const ConvShape s = conv_of_grad(p.attributes);
  if (sums_nothing(s)) return make_conv_zeros();
  const ConvColumns columns(s, p.out(0), p.in(0));
  return make_kernel(
      [columns](const KernelArgs& a) {
        columns.grad_input(a.in<float>(0), a.in<float>(1), a.out<float>(0), a.workspace);
      },
      columns.workspace_bytes());
}

std::unique_ptr<Kernel> make_columns_conv_grad_weights(const Problem& p) {
  const ConvShape s = conv_of_grad(p.attributes);
  if (sums_nothing(s)) return make_conv_zeros();
  const ConvColumns columns(s, p.in(0), p.in(1));
  return make_kernel(
      [columns, bias = p.has_out(1)](const KernelArgs& a) {
        columns.grad_weights(a.in<float>(0), a.in<float>(1), a.out<float>(0),
                             bias ? a.out<float>(1) : nullptr, a.workspace);
      },
      columns.workspace_bytes());
}

}  // namespace ofsdp::kernels::ops
