// ArgMax(x) and ArgMin(x), attributes axis, keepdims, select_last_index: the index of the largest
// or smallest element along the axis, int64; of equal ones the first, or the last when
// select_last_index is 1. Every numeric dtype. Like numpy, the first NaN of a line is its extreme.
// No gradient. https://onnx.ai/onnx/operators/onnx__ArgMax.html
#include <array>
#include <cmath>

#include "kernels/core/element_types.h"
#include "kernels/cpu/in_float32.h"
#include "kernels/cpu/lines.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace arg_extremes {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& shape = c.inputs[0].shape;
  OFSDP_ASSIGN_OR_RETURN(const int axis, normalize_axis(c.attributes.i("axis", 0), shape.rank()));
  std::vector<int64_t> axes = shape.axes();
  axes[static_cast<size_t>(axis)] = 1;
  if (c.attributes.i("keepdims", 1) == 0) axes.erase(axes.begin() + axis);
  const Shape out(axes);
  if (shape[axis] == 0 && out.numel() > 0) {
    return input_error("axis {} of {} is empty, expected at least one element", axis, shape.text());
  }
  return std::vector{TensorDesc{DType::kInt64, out}};
}

// Returns whether `value` replaces `best`, which comes before it.
template <bool largest, bool last, typename T>
[[gnu::always_inline]] inline bool replaces(T value, T best) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(best)) return last && std::isnan(value);
    if (std::isnan(value)) return true;
  }
  if constexpr (largest) return last ? value >= best : value > best;
  return last ? value <= best : value < best;
}

template <bool largest>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const Lines lines = lines_along(c.inputs[0].desc.shape, c.attributes.i("axis", 0));
  const bool last = c.attributes.i("select_last_index", 0) != 0;
  const auto& x = c.inputs[0].values;
  for (int64_t line = 0; line < lines.count(); ++line) {
    int64_t best = 0;
    auto at = [&](int64_t k) {
      return x[static_cast<size_t>(lines.at(line / lines.inner, k, line % lines.inner))];
    };
    for (int64_t k = 1; k < lines.n; ++k) {
      const bool better = largest ? at(k) > at(best) : at(k) < at(best);
      if (better || (last && at(k) == at(best))) best = k;
    }
    y.values.push_back(static_cast<double>(best));
  }
  return {y};
}

// A block of neighbouring lines side by side, so that columns go at the speed of rows.
template <bool largest, bool last, typename T>
void extreme_block(const Lines& lines, const T* x, int64_t* y, int64_t count) {
  std::array<T, kLineBlock> best;
  std::copy_n(x, count, best.begin());
  std::fill_n(y, count, 0);
  for (int64_t k = 1; k < lines.n; ++k) {
    const T* row = x + k * lines.inner;
    for (int64_t j = 0; j < count; ++j) {
      const auto at = static_cast<size_t>(j);
      const bool better = replaces<largest, last>(row[j], best[at]);
      best[at] = better ? row[j] : best[at];
      y[j] = better ? k : y[j];
    }
  }
}

using Block = void (*)(const Lines& lines, const std::byte* x, int64_t* y, int64_t count);

template <bool largest, bool last>
Block block_of(DType dtype) {
  return with_number(dtype, []<typename T>(T) -> Block {
    return [](const Lines& lines, const std::byte* x, int64_t* y, int64_t count) {
      extreme_block<largest, last>(lines, reinterpret_cast<const T*>(x), y, count);
    };
  });
}

template <bool largest>
std::unique_ptr<Kernel> create(const Problem& p) {
  const bool last = p.attributes.i("select_last_index", 0) != 0;
  const DType dtype = p.in(0).dtype;
  const Block block = last ? block_of<largest, true>(dtype) : block_of<largest, false>(dtype);
  const auto bytes = static_cast<int64_t>(dtype_size(dtype));
  return make_kernel([lines = lines_along(p.in(0).shape, p.attributes.i("axis", 0)), block,
                      bytes](const KernelArgs& a) {
    for_line_blocks(lines, [&](int64_t o, int64_t begin, int64_t end) {
      block(lines, a.in<std::byte>(0) + lines.at(o, 0, begin) * bytes,
            a.out<int64_t>(0) + o * lines.inner + begin, end - begin);
    });
  });
}

template <bool largest>
OpDef arg_extreme(const char* name) {
  return {.name = name,
          .infer = infer,
          .reference = reference<largest>,
          .cpu = with_half_floats<accepts_plain_numbers, create<largest>>("lines")};
}

}  // namespace
}  // namespace arg_extremes

void add_arg_extreme(Registry& registry) {
  using namespace arg_extremes;
  registry.add(arg_extreme<true>("ArgMax"));
  registry.add(arg_extreme<false>("ArgMin"));
}

}  // namespace ofsdp::kernels::ops
