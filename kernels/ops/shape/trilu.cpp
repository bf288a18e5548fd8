// Trilu(x, k), attribute upper: the upper triangle of each matrix (elements with j - i >= k), or
// with upper = 0 the lower one (j - i <= k); zeros elsewhere. Any dtype. dx is the Trilu of dy.
// https://onnx.ai/onnx/operators/onnx__Trilu.html
#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace trilu {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  if (x.shape.rank() < 2) return input_error("expected at least two axes, found {}", x.text());
  if (c.has(1)) {
    OFSDP_ASSIGN_OR_RETURN(const auto k, known_ints(c, 1, "k"));
    if (k.size() != 1) return input_error("input 'k': expected one number, found {}", k.size());
  }
  return std::vector{TensorDesc{x.dtype, x.shape}};
}

void grad(GradBuilder& b) {
  std::vector<Ref> inputs{b.grad_output(0)};
  if (b.num_inputs() > 1 && b.input(1)) inputs.push_back(b.input(1));
  b.set_grad(0, b.emit1("Trilu", inputs, b.attributes()));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const double k = c.inputs.size() > 1 ? c.inputs[1].values[0] : 0;
  const bool upper = c.attributes.i("upper", 1) != 0;
  for (int64_t n = 0; n < y.desc.numel(); ++n) {
    const auto index = unravel(y.desc.shape, n);
    const auto above = static_cast<double>(index.back() - index[index.size() - 2]);
    if (upper ? above < k : above > k) y[n] = 0;
  }
  return {y};
}

// Row i keeps its columns begin .. end-1.
struct Triangle {
  bool upper;
  int64_t k, rows, columns;

  int64_t begin(int64_t i) const { return upper ? std::clamp<int64_t>(i + k, 0, columns) : 0; }
  int64_t end(int64_t i) const {
    return upper ? columns : std::clamp<int64_t>(i + k + 1, 0, columns);
  }
};

std::unique_ptr<Kernel> create(const Problem& p) {
  const Shape& shape = p.out(0).shape;
  const int rank = shape.rank();
  const int64_t k = p.has_in(1) ? (*int_values(*p.constant(1)))[0] : 0;
  const int64_t most = shape[rank - 1] + shape[rank - 2];
  const Triangle t{p.attributes.i("upper", 1) != 0, std::clamp(k, -most, most), shape[rank - 2],
                   shape[rank - 1]};
  const auto size = static_cast<int64_t>(dtype_size(p.out(0).dtype));
  return make_kernel([t, size, rows = shape.numel(0, rank - 1)](const KernelArgs& a) {
    parallel_for(rows, 65536 / (t.columns * size + 1) + 1, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const int64_t begin = t.begin(row % t.rows) * size;
        const int64_t end = std::max(t.end(row % t.rows) * size, begin);
        const std::byte* x = a.inputs[0].data + row * t.columns * size;
        std::byte* y = a.outputs[0].data + row * t.columns * size;
        if (x != y) std::copy(x + begin, x + end, y + begin);
        std::fill(y, y + begin, std::byte{0});
        std::fill(y + end, y + t.columns * size, std::byte{0});
      }
    });
  });
}

}  // namespace trilu

void add_trilu(Registry& registry) {
  using namespace trilu;
  registry.add(make_op("Trilu", {infer, grad, reference}, {{"rows", accepts_plain, create}},
                       {.first_opset = 14, .inplace_inputs = {0}, .constant_inputs = {1}}));
}

}  // namespace ofsdp::kernels::ops
