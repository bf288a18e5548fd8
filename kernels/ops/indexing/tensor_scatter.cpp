// TensorScatter(past_cache, update, write_indices), attributes axis, mode: the cache with the
// update written along the axis from write_indices[batch entry] on (0 when absent; the batch is
// axis 0), round the end when mode is circular. Any dtype. No gradient: it serves caches of
// generation. https://onnx.ai/onnx/operators/onnx__TensorScatter.html
#include "kernels/cpu/lines.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace tensor_scatter {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& cache = c.inputs[0];
  OFSDP_ASSIGN_OR_RETURN(const int axis,
                         normalize_axis(c.attributes.i("axis", -2), cache.shape.rank()));
  Shape like = c.inputs[1].shape;
  const bool fits =
      axis > 0 && like.rank() == cache.shape.rank() && like[axis] <= cache.shape[axis];
  if (fits) like[axis] = cache.shape[axis];
  if (!fits || like != cache.shape || c.inputs[1].dtype != cache.dtype) {
    return input_error("expected an update that is not longer than {} along axis {} > 0, found {}",
                       cache.text(), axis, c.inputs[1].text());
  }
  const TensorDesc indices{DType::kInt64, {cache.shape[0]}};
  if (c.has(2) && c.inputs[2] != indices) {
    return input_error("expected write_indices {}, found {}", indices.text(), c.inputs[2].text());
  }
  return std::vector{TensorDesc{cache.dtype, cache.shape}};
}

bool circular(const Attributes& attributes) { return attributes.s("mode", "linear") == "circular"; }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const int axis = *normalize_axis(c.attributes.i("axis", -2), y.desc.shape.rank());
  for (size_t i = 0; i < c.inputs[1].values.size(); ++i) {
    auto index = unravel(c.inputs[1].desc.shape, static_cast<int64_t>(i));
    int64_t& at = index[static_cast<size_t>(axis)];
    if (c.inputs.size() > 2) at += static_cast<int64_t>(c.inputs[2][index[0]]);
    if (circular(c.attributes)) at %= y.desc.shape[axis];
    y.values[ravel(y.desc.shape, index)] = c.inputs[1].values[i];
  }
  return {y};
}

struct Written {
  Lines cache, update;
  int64_t per_batch;  // of the cache's outer lines
  int64_t bytes;      // of one step
  bool circular;

  Status check(const int64_t* indices) const {
    const int64_t most = circular ? INT64_MAX : cache.n - update.n;
    for (int64_t b = 0; indices != nullptr && b * per_batch < cache.outer; ++b) {
      if (indices[b] >= 0 && indices[b] <= most) continue;
      return input_error("write_indices[{}] is {}, expected 0..{}", b, indices[b], most);
    }
    return ok_status();
  }
  void run(const std::byte* from, const int64_t* indices, std::byte* to) const {
    for (int64_t o = 0; o < cache.outer && bytes > 0; ++o) {
      const int64_t first =
          indices == nullptr ? 0 : indices[o / per_batch] % std::max<int64_t>(cache.n, 1);
      for (int64_t k = 0; k < update.n; ++k) {
        std::memcpy(to + (o * cache.n + (first + k) % cache.n) * bytes,
                    from + (o * update.n + k) * bytes, static_cast<size_t>(bytes));
      }
    }
  }
};

std::unique_ptr<Kernel> create(const Problem& p) {
  const Shape& shape = p.out(0).shape;
  const int64_t axis = p.attributes.i("axis", -2);
  const Lines cache = lines_along(shape, axis);
  const Written w{cache, lines_along(p.in(1).shape, axis),
                  std::max<int64_t>(cache.outer / std::max<int64_t>(shape[0], 1), 1),
                  cache.inner * static_cast<int64_t>(dtype_size(p.out(0).dtype)),
                  circular(p.attributes)};
  return make_kernel([w, placed = p.has_in(2), all = p.out(0).bytes()](const KernelArgs& a) {
    const int64_t* indices = placed ? a.in<int64_t>(2) : nullptr;
    OFSDP_RETURN_IF_ERROR(w.check(indices));
    std::byte* y = a.outputs[0].data;
    if (all > 0 && y != a.inputs[0].data) std::memcpy(y, a.inputs[0].data, all);
    w.run(a.inputs[1].data, indices, y);
    return ok_status();
  });
}

}  // namespace tensor_scatter

void add_tensor_scatter(Registry& registry) {
  using namespace tensor_scatter;
  registry.add(make_op("TensorScatter", {infer, nullptr, reference},
                       {{"rows", accepts_plain, create}},
                       {.min_inputs = 2, .first_opset = 24, .inplace_inputs = {0}}));
}

}  // namespace ofsdp::kernels::ops
