// RoiAlign(X [N, C, H, W], rois [R, 4], batch_indices [R]): Y [R, C, output_height, output_width].
// A region [x1, y1, x2, y2], times spatial_scale and, in mode half_pixel, minus 0.5, is divided
// into bins. Each bin takes sampling_ratio^2 samples from X (one per pixel if sampling_ratio is 0),
// each interpolated between 4 pixels: a sum of weight times pixel. Samples more than 1 beyond the
// border are 0. Y is the mean of a bin's samples; with mode "max" it is, as in ONNX's reference,
// the largest product of weight and pixel, not the largest sample.
//
// ofsdp.RoiAlignGrad(dY, X, rois, batch_indices): each pixel gets dY times its weights, divided by
// the sample count; with "max" only the pixel of the largest product gets dY times its weight.
// Regions have no gradient.
// https://onnx.ai/onnx/operators/onnx__RoiAlign.html
#include "kernels/ops/pool/roi_align.h"

#include <algorithm>

#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace roi_align {
namespace {

// `x` is input `at`; the regions and their images follow.
template <size_t at>
Status check(const InferContext& c) {
  const TensorDesc &x = c.inputs[at], &rois = c.inputs[at + 1], &images = c.inputs[at + 2];
  const bool fits = x.shape.rank() == 4 && rois.shape.rank() == 2 && rois.shape[1] == 4 &&
                    images.shape == Shape{rois.shape[0]} && rois.dtype == x.dtype &&
                    images.dtype == DType::kInt64;
  if (!fits) {
    return input_error(
        "expected X [N, C, H, W], rois [R, 4] of its type and int64 batch_indices [R], found {}, "
        "{} and {}",
        x.text(), rois.text(), images.text());
  }
  const RoiParams e = roi_extent(c.attributes, x.shape, rois.shape);
  if (e.bins_y > 0 && e.bins_x > 0 && e.ratio >= 0 && (e.pixels() > 0 || rois.shape[0] == 0))
    return {};
  return input_error("expected bins and pixels, found {} x {} bins of {}", e.bins_y, e.bins_x,
                     x.text());
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check<0>(c));
  const RoiParams e = roi_extent(c.attributes, c.inputs[0].shape, c.inputs[1].shape);
  return std::vector{TensorDesc{c.inputs[0].dtype, {e.rois, e.channels, e.bins_y, e.bins_x}}};
}

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(check<1>(c));
  return std::vector{TensorDesc{c.inputs[1].dtype, c.inputs[1].shape}};
}

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ofsdp.RoiAlignGrad",
                        {b.grad_output(0), b.input(0), b.input(1), b.input(2)}, b.attributes()));
}

// Calls f(pixel, weight) for the pixels of each sample in a bin.
void for_each_pixel(const RoiParams& e, const RoiRegion& region, int64_t bin, const auto& f) {
  for (int64_t i = 0; i < region.down.samples * region.across.samples; ++i) {
    const RoiSample sample = roi_sample(e, region, bin, i);
    for (int k = 0; k < sample.count; ++k) f(sample.pixel[k], sample.weight[k]);
  }
}

// Calls f(image, index, region, bin) for each bin of each region. index: of the bin's element of Y
// for channel 0.
template <typename T>
Status for_each_bin(const RoiParams& e, const T* rois, const int64_t* images, const auto& f) {
  for (int64_t r = 0; r < e.rois; ++r) {
    if (images[r] < 0 || images[r] >= e.images) {
      return input_error("batch_indices: expected images 0 to {}, found {}", e.images - 1,
                         images[r]);
    }
    const RoiRegion region = roi_region(e, rois, r);
    for (int64_t bin = 0; bin < e.bins(); ++bin) {
      f(images[r], r * e.channels * e.bins() + bin, region, bin);
    }
  }
  return ok_status();
}

// Computes channels first ... last - 1 of Y.
template <typename T>
Status align(const RoiParams& e, const T* x, const T* rois, const int64_t* images, int64_t first,
             int64_t last, T* y) {
  return for_each_bin(e, rois, images,
                      [&](int64_t image, int64_t to, const RoiRegion& region, int64_t bin) {
                        for (int64_t c = first; c < last; ++c) {
                          const T* plane = x + (image * e.channels + c) * e.pixels();
                          double sum = 0;
                          if (e.largest) {
                            const RoiLargest best = roi_largest(e, region, bin, plane);
                            if (best.pixel >= 0)
                              sum = best.weight * static_cast<double>(plane[best.pixel]);
                          } else {
                            for_each_pixel(e, region, bin, [&](int64_t pixel, double weight) {
                              sum += weight * static_cast<double>(plane[pixel]);
                            });
                            sum /= region.samples();
                          }
                          y[to + c * e.bins()] = static_cast<T>(sum);
                        }
                      });
}

// Computes the same channels of dX. REQUIRES: dX is 0.
template <typename T>
Status align_grad(const RoiParams& e, const T* dy, const T* x, const T* rois, const int64_t* images,
                  int64_t first, int64_t last, T* dx) {
  return for_each_bin(
      e, rois, images, [&](int64_t image, int64_t from, const RoiRegion& region, int64_t bin) {
        for (int64_t c = first; c < last; ++c) {
          const int64_t plane = (image * e.channels + c) * e.pixels();
          const double d = static_cast<double>(dy[from + c * e.bins()]);
          const auto add = [&](int64_t pixel, double slope) {
            dx[plane + pixel] = static_cast<T>(static_cast<double>(dx[plane + pixel]) + slope);
          };
          if (e.largest) {
            const RoiLargest best = roi_largest(e, region, bin, x + plane);
            if (best.pixel >= 0) add(best.pixel, d * best.weight);
            continue;
          }
          const double share = d / region.samples();
          for_each_pixel(e, region, bin,
                         [&](int64_t pixel, double weight) { add(pixel, weight * share); });
        }
      });
}

// --- references: the kernels' loops in double, one channel after the other ---

std::vector<int64_t> images_of(const RefTensor& indices) {
  return {indices.values.begin(), indices.values.end()};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const RefTensor &x = c.inputs[0], &rois = c.inputs[1];
  const RoiParams e = roi_extent(c.attributes, x.desc.shape, rois.desc.shape);
  const Status status = align(e, x.values.data(), rois.values.data(), images_of(c.inputs[2]).data(),
                              0, e.channels, y.values.data());
  OFSDP_CHECK(status.ok(), "{}", status.message());
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  const RefTensor &x = c.inputs[1], &rois = c.inputs[2];
  const RoiParams e = roi_extent(c.attributes, x.desc.shape, rois.desc.shape);
  const Status status =
      align_grad(e, c.inputs[0].values.data(), x.values.data(), rois.values.data(),
                 images_of(c.inputs[3]).data(), 0, e.channels, dx.values.data());
  OFSDP_CHECK(status.ok(), "{}", status.message());
  return {dx};
}

// --- kernels: threads share the channels ---

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel(
      [e = roi_extent(p.attributes, p.in(0).shape, p.in(1).shape)](const KernelArgs& a) {
        Status status = align(e, a.in<T>(0), a.in<T>(1), a.in<int64_t>(2), 0, 0, a.out<T>(0));
        if (!status.ok()) return status;  // wrong index; the same for all channels
        parallel_for(e.channels, 1, [&](int64_t first, int64_t last) {
          (void)align(e, a.in<T>(0), a.in<T>(1), a.in<int64_t>(2), first, last, a.out<T>(0));
        });
        return ok_status();
      });
}

template <typename T>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([e = roi_extent(p.attributes, p.in(1).shape, p.in(2).shape)](
                         const KernelArgs& a) {
    T* dx = a.out<T>(0);
    std::fill_n(dx, e.images * e.channels * e.pixels(), T{0});
    Status status = align_grad(e, a.in<T>(0), a.in<T>(1), a.in<T>(2), a.in<int64_t>(3), 0, 0, dx);
    if (!status.ok()) return status;
    parallel_for(e.channels, 1, [&](int64_t first, int64_t last) {
      (void)align_grad(e, a.in<T>(0), a.in<T>(1), a.in<T>(2), a.in<int64_t>(3), first, last, dx);
    });
    return ok_status();
  });
}

}  // namespace
}  // namespace roi_align

void add_roi_align(Registry& registry) {
  using namespace roi_align;
  registry.add(make_op("RoiAlign", {infer, grad, reference},
                       float_kernels<accepts_plain_first_of<float>, create<float>,
                                     accepts_plain_first_of<double>, create<double>>("bins"),
                       {.min_inputs = 3, .first_opset = 16}));
  registry.add_own(
      make_op("RoiAlignGrad", {infer_grad, nullptr, grad_reference},
              float_kernels<accepts_plain_first_of<float>, create_grad<float>,
                            accepts_plain_first_of<double>, create_grad<double>>("bins"),
              {.min_inputs = 4}));
}

}  // namespace ofsdp::kernels::ops
