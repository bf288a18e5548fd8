// OneHot(indices, depth, values), attribute axis: values = [off, on]; a new axis of size depth
// holds `on` at the index and `off` elsewhere, everywhere for an index outside of -depth..depth-1.
// Any dtype of values, indices of any numeric dtype. No gradient.
// https://onnx.ai/onnx/operators/onnx__OneHot.html
#include "kernels/core/element_types.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/lines.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace one_hot {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Constant* depth = c.constant(1);
  if (depth == nullptr || depth->desc.numel() != 1) {
    return input_error("input 'depth' must be one number known before the run, found {}",
                       c.inputs[1].text());
  }
  if (c.inputs[2].numel() != 2) {
    return input_error("input 'values': expected [off, on], found {}", c.inputs[2].text());
  }
  const double n = first_double(*depth);
  if (!(n >= 0 && n < 0x1p40))
    return input_error("input 'depth': expected at least 0, found {}", n);
  std::vector<int64_t> axes = c.inputs[0].shape.axes();
  OFSDP_ASSIGN_OR_RETURN(const int axis,
                         normalize_axis(c.attributes.i("axis", -1), c.inputs[0].shape.rank() + 1));
  axes.insert(axes.begin() + axis, static_cast<int64_t>(n));
  OFSDP_RETURN_IF_ERROR(checked_numel(axes).status());
  return std::vector{TensorDesc{c.inputs[2].dtype, Shape(axes)}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const Lines lines = lines_along(y.desc.shape, c.attributes.i("axis", -1));
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const int64_t line = i / (lines.n * lines.inner) * lines.inner + i % lines.inner;
    const auto index = static_cast<int64_t>(c.inputs[0][line]);
    const int64_t k = i / lines.inner % lines.n;
    y.values.push_back(c.inputs[2].values[k == index || k == index + lines.n ? 1 : 0]);
  }
  return {y};
}

// Indices begin .. begin + n - 1 of any number type.
using ReadIndices = void (*)(const std::byte* indices, int64_t begin, int64_t n, int64_t* to);

ReadIndices reader(DType dtype) {
  return with_number(dtype, []<typename T>(T) -> ReadIndices {
    return [](const std::byte* indices, int64_t begin, int64_t n, int64_t* to) {
      const T* from = reinterpret_cast<const T*>(indices) + begin;
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<int64_t>(from[i]);
    };
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Lines lines = lines_along(p.out(0).shape, p.attributes.i("axis", -1));
  return with_bits(dtype_size(p.out(0).dtype), [&]<typename T>(T) {
    return make_kernel([lines, read = reader(p.in(0).dtype)](const KernelArgs& a) {
      const T off = a.in<T>(2)[0], on = a.in<T>(2)[1];
      for_line_blocks(lines, [&](int64_t o, int64_t begin, int64_t end) {
        for (int64_t k = 0; k < lines.n; ++k) {
          T* y = a.out<T>(0) + lines.at(o, k, 0);
          std::fill(y + begin, y + end, off);
        }
        int64_t indices[kLineBlock];
        read(a.inputs[0].data, o * lines.inner + begin, end - begin, indices);
        for (int64_t j = begin; j < end; ++j) {
          const int64_t index = indices[j - begin], k = index < 0 ? index + lines.n : index;
          if (k >= 0 && k < lines.n) a.out<T>(0)[lines.at(o, k, j)] = on;
        }
      });
    });
  });
}

}  // namespace one_hot

void add_one_hot(Registry& registry) {
  using namespace one_hot;
  registry.add(make_op("OneHot", {infer, nullptr, reference},
                       with_half_floats<accepts_plain_numbers, create>("lines"),
                       {.min_inputs = 3, .first_opset = 9, .constant_inputs = {1}}));
}

}  // namespace ofsdp::kernels::ops
