// Col2Im(x [N, C taps, L], image_shape, block_shape) adds convolution columns into the image: for
// each of the L block positions o, y[n, c, o s - p + k d] += x[n, c taps + k, o], with strides s,
// pads p and dilations d. The gradient ofsdp.Col2ImGrad(dy, image_shape, block_shape) reads the
// same elements of dy, and 0 in the padding.
// https://onnx.ai/onnx/operators/onnx__Col2Im.html
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/ops/conv/window.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace col2im {
namespace {

using Ints = std::vector<int64_t>;

struct Columns {
  Window window;
  Shape columns, image;
};

Result<Columns> resolve(const Attributes& attributes, int64_t images, int64_t channels,
                        const Ints& image, const Ints& block) {
  Columns made;
  Ints y = {images, channels};
  y.insert(y.end(), image.begin(), image.end());
  made.image = Shape(std::move(y));
  OFSDP_ASSIGN_OR_RETURN(made.window, resolve_window(attributes, made.image, block));
  made.columns = {images, channels * made.window.taps(), made.window.out_size()};
  return made;
}

Result<Columns> resolve(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  OFSDP_ASSIGN_OR_RETURN(const Ints image, known_ints(c, 1, "image_shape"));
  OFSDP_ASSIGN_OR_RETURN(const Ints block, known_ints(c, 2, "block_shape"));
  int64_t taps = 1;
  for (int64_t axis : block) taps *= axis;
  if (x.rank() != 3 || taps < 1 || x[1] % taps != 0) {
    return input_error("expected [N, C x {}, L], found {}", taps, x.text());
  }
  OFSDP_ASSIGN_OR_RETURN(Columns made, resolve(c.attributes, x[0], x[1] / taps, image, block));
  if (made.columns != x) {
    return input_error("expected {} for this image and block, found {}", made.columns.text(),
                       x.text());
  }
  return made;
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Columns made, resolve(c));
  return std::vector{TensorDesc{c.inputs[0].dtype, made.image}};
}

void grad(GradBuilder& b) {
  b.set_grad(
      0, b.emit1("ofsdp.Col2ImGrad", {b.grad_output(0), b.input(1), b.input(2)}, b.attributes()));
}

Ints ints_of(const Constant* constant) { return *int_values(*constant); }

Result<std::vector<TensorDesc>> infer_grad(const InferContext& c) {
  const Shape& y = c.inputs[0].shape;
  OFSDP_ASSIGN_OR_RETURN(
      const Columns made,
      resolve(c.attributes, y[0], y[1], ints_of(c.constant(1)), ints_of(c.constant(2))));
  return std::vector{TensorDesc{c.inputs[0].dtype, made.columns}};
}

// Calls f(column index, image index) for each tap in one image plane.
void for_each_pair(const Window& w, int64_t plane, const auto& f) {
  for_each_tap(w, [&](int64_t out, int64_t tap, int64_t in) {
    f((plane * w.taps() + tap) * w.out_size() + out, plane * w.in_size() + in);
  });
}

Columns of_reference(const ReferenceContext& c, const Shape& image) {
  Ints block;
  for (double v : c.inputs[2].values) block.push_back(static_cast<int64_t>(v));
  const Ints axes(image.axes().begin() + 2, image.axes().end());
  return *resolve(c.attributes, image[0], image[1], axes, block);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const Columns made = of_reference(c, y.desc.shape);
  for (int64_t plane = 0; plane < y.desc.shape.numel(0, 2); ++plane) {
    for_each_pair(made.window, plane,
                  [&](int64_t column, int64_t at) { y[at] += c.inputs[0][column]; });
  }
  return {y};
}

std::vector<RefTensor> grad_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  const Columns made = of_reference(c, c.inputs[0].desc.shape);
  for (int64_t plane = 0; plane < made.image.numel(0, 2); ++plane) {
    for_each_pair(made.window, plane,
                  [&](int64_t column, int64_t at) { dx[column] = c.inputs[0][at]; });
  }
  return {dx};
}

Columns of_problem(const Problem& p, const Shape& image) {
  return *resolve(p.attributes, image[0], image[1], ints_of(p.constant(1)), ints_of(p.constant(2)));
}

template <typename T>
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([made = of_problem(p, p.out(0).shape)](const KernelArgs& a) {
    const Window& w = made.window;
    const T* x = a.in<T>(0);
    T* y = a.out<T>(0);
    parallel_for(made.image.numel(0, 2), 1, [&](int64_t begin, int64_t end) {
      std::fill(y + begin * w.in_size(), y + end * w.in_size(), T{0});
      for (int64_t plane = begin; plane < end; ++plane) {
        for_each_pair(w, plane, [&](int64_t column, int64_t at) { y[at] += x[column]; });
      }
    });
  });
}

template <typename T>
std::unique_ptr<Kernel> create_grad(const Problem& p) {
  return make_kernel([made = of_problem(p, p.in(0).shape)](const KernelArgs& a) {
    const Window& w = made.window;
    const int64_t size = w.taps() * w.out_size();
    const T* dy = a.in<T>(0);
    T* dx = a.out<T>(0);
    parallel_for(made.image.numel(0, 2), 1, [&](int64_t begin, int64_t end) {
      std::fill(dx + begin * size, dx + end * size, T{0});
      for (int64_t plane = begin; plane < end; ++plane) {
        for_each_pair(w, plane, [&](int64_t column, int64_t at) { dx[column] = dy[at]; });
      }
    });
  });
}

}  // namespace
}  // namespace col2im

void add_col2im(Registry& registry) {
  using namespace col2im;
  registry.add(make_op("Col2Im", {infer, grad, reference},
                       float_kernels<accepts_plain_first_of<float>, create<float>,
                                     accepts_plain_first_of<double>, create<double>>("loops"),
                       {.min_inputs = 3, .first_opset = 18, .constant_inputs = {1, 2}}));
  registry.add_own(
      make_op("Col2ImGrad", {infer_grad, nullptr, grad_reference},
              float_kernels<accepts_plain_first_of<float>, create_grad<float>,
                            accepts_plain_first_of<double>, create_grad<double>>("loops"),
              {.min_inputs = 3, .constant_inputs = {1, 2}}));
}

}  // namespace ofsdp::kernels::ops
