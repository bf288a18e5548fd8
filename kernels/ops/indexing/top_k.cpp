// TopK(x, k), attributes axis, largest, sorted: the k largest (or smallest) elements along the axis
// and their indices, best first (sorted = 0 leaves the order open: it is the same here); of equal
// ones the lowest index first, NaN counts as the largest. dx is dy scattered to the indices.
// https://onnx.ai/onnx/operators/onnx__TopK.html
#include <cmath>

#include "kernels/core/element_types.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/lines.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/operators.h"

namespace ofsdp::kernels::ops {
namespace top_k {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  Shape shape = c.inputs[0].shape;
  OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(c.attributes.i("axis", -1), shape.rank()));
  OFSDP_ASSIGN_OR_RETURN(const auto k, known_ints(c, 1, "k"));
  if (k.size() != 1 || k[0] < 0 || k[0] > shape[axis]) {
    return input_error("input 'k': expected one number in 0..{}, found {}", shape[axis],
                       Shape(k).text());
  }
  shape[axis] = k[0];
  return std::vector{TensorDesc{c.inputs[0].dtype, shape}, TensorDesc{DType::kInt64, shape}};
}

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  if (!dy) return;
  b.set_grad(0, b.emit1("ScatterElements", {zeros(b, b.desc(b.input(0))), b.output(1), dy},
                        {{"axis", b.attributes().i("axis", -1)}}));
}

// Returns whether element (value v, index i) comes before (w, j).
template <bool largest, typename T>
[[gnu::always_inline]] inline bool before(T v, int64_t i, T w, int64_t j) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(v) || std::isnan(w)) {
      if (std::isnan(v) && std::isnan(w)) return i < j;
      return std::isnan(v) == largest;
    }
  }
  if (v != w) return largest ? v > w : v < w;
  return i < j;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Lines lines = lines_along(c.inputs[0].desc.shape, c.attributes.i("axis", -1));
  const bool largest = c.attributes.i("largest", 1) != 0;
  std::vector<RefTensor> out;
  for (const TensorDesc& d : c.output_descs) out.push_back(zeros(d));
  const auto k = static_cast<int64_t>(c.inputs[1].values[0]);
  for (int64_t line = 0; line < lines.count(); ++line) {
    const int64_t o = line / lines.inner, j = line % lines.inner;
    std::vector<std::pair<double, int64_t>> all;
    for (int64_t i = 0; i < lines.n; ++i) {
      const double v = c.inputs[0][lines.at(o, i, j)];
      all.emplace_back(largest ? -v : v, i);
    }
    std::ranges::sort(all);
    for (int64_t i = 0; i < k; ++i) {
      const auto at = static_cast<size_t>((o * k + i) * lines.inner + j);
      const auto& [v, index] = all[static_cast<size_t>(i)];
      out[0].values[at] = largest ? -v : v;
      if (out.size() > 1) out[1].values[at] = static_cast<double>(index);
    }
  }
  return out;
}

// The k best of one line, kept as a heap with the worst on top, then sorted in place; x and best
// step by `step`, so the heap is the output itself.
template <bool largest, typename T>
struct Selection {
  const T* x;
  int64_t* best;
  int64_t step, n, k;

  int64_t& at(int64_t i) const { return best[i * step]; }
  bool in_front(int64_t i, int64_t j) const {
    return before<largest>(x[i * step], i, x[j * step], j);
  }
  void sift(int64_t root, int64_t size) const {
    const int64_t moved = at(root);
    for (int64_t child = 2 * root + 1; child < size; child = 2 * root + 1) {
      if (child + 1 < size && in_front(at(child), at(child + 1))) ++child;
      if (!in_front(moved, at(child))) break;
      at(root) = at(child);
      root = child;
    }
    at(root) = moved;
  }
  void run() const {
    for (int64_t i = 0; i < k; ++i) at(i) = i;
    for (int64_t i = k / 2; i-- > 0;) sift(i, k);
    for (int64_t i = k; k > 0 && i < n; ++i) {
      if (!in_front(i, at(0))) continue;
      at(0) = i;
      sift(0, k);
    }
    for (int64_t size = k; size-- > 1;) {
      std::swap(at(0), at(size));
      sift(0, size);
    }
  }
};

// The k best elements of a line, elements `step` apart; y null: only their indices.
using Line = void (*)(const std::byte* x, int64_t* best, std::byte* y, int64_t step, int64_t n,
                      int64_t k);

template <bool largest>
Line line_of(DType dtype) {
  return with_number(dtype, []<typename T>(T) -> Line {
    return [](const std::byte* from, int64_t* best, std::byte* to, int64_t step, int64_t n,
              int64_t k) {
      const T* x = reinterpret_cast<const T*>(from);
      Selection<largest, T>{x, best, step, n, k}.run();
      T* y = reinterpret_cast<T*>(to);
      for (int64_t i = 0; y != nullptr && i < k; ++i) y[i * step] = x[best[i * step] * step];
    };
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  const Line run = p.attributes.i("largest", 1) != 0 ? line_of<true>(dtype) : line_of<false>(dtype);
  const Lines lines = lines_along(p.in(0).shape, p.attributes.i("axis", -1));
  const int64_t k = (*int_values(*p.constant(1)))[0];
  // Indices that nobody wants still are needed.
  const bool own = !p.has_out(1);
  const size_t workspace = own ? static_cast<size_t>(lines.count() * k) * sizeof(int64_t) : 0;
  const auto bytes = static_cast<int64_t>(dtype_size(dtype));
  return make_kernel(
      [lines, k, own, run, bytes](const KernelArgs& a) {
        auto* indices = own ? reinterpret_cast<int64_t*>(a.workspace) : a.out<int64_t>(1);
        std::byte* y = a.outputs[0].data;
        parallel_each(lines.count(), 8192 / (lines.n + 1) + 1, [&](int64_t line) {
          const int64_t o = line / lines.inner, j = line % lines.inner;
          const int64_t at = o * k * lines.inner + j;
          run(a.inputs[0].data + lines.at(o, 0, j) * bytes, indices + at,
              y == nullptr ? nullptr : y + at * bytes, lines.inner, lines.n, k);
        });
      },
      workspace);
}

}  // namespace top_k

void add_top_k(Registry& registry) {
  using namespace top_k;
  registry.add(make_op("TopK", {infer, grad, reference},
                       with_half_floats<accepts_plain_numbers, create>("heap"),
                       {.min_inputs = 2, .first_opset = 11, .constant_inputs = {1}}));
}

}  // namespace ofsdp::kernels::ops
