#include "kernels/ops/indexing/unique_groups.h"

#include <algorithm>
#include <numeric>

#include "kernels/cpu/element_types.h"

namespace ofsdp::kernels::ops {
namespace {

template <typename T>
bool before(T a, T b) {
  return a < b || (a == a && b != b);
}

// Slices in rising order, equal ones as they appear; first_like: per slice the first of its like.
template <typename Less>
void sort_slices(int64_t n, const Less& less, int64_t* order, int64_t* first_like) {
  std::iota(order, order + n, 0);
  std::sort(order, order + n, [&](int64_t i, int64_t j) {
    if (less(i, j)) return true;
    return i < j && !less(j, i);
  });
  for (int64_t k = 0; k < n; ++k) {
    const bool starts = k == 0 || less(order[k - 1], order[k]);
    first_like[order[k]] = starts ? order[k] : first_like[order[k - 1]];
  }
}

// Numbers the groups in the order in which their first slices are met. Either walk meets them
// before their like, so `inverse` may hold first_like ahead of the walk.
int64_t number_groups(int64_t n, const int64_t* order, const UniqueGroups& groups) {
  int64_t count = 0;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t i = order == nullptr ? k : order[k];
    const int64_t first = groups.inverse[i];
    if (first == i) {
      groups.first[count] = i;
      groups.counts[count] = 0;
      groups.inverse[i] = count++;
    } else {
      groups.inverse[i] = groups.inverse[first];
    }
    ++groups.counts[groups.inverse[i]];
  }
  return count;
}

template <typename T, typename Read>
int64_t find(const void* values, const Lines& lines, bool sorted, int64_t* order,
             const UniqueGroups& groups, const Read& read) {
  const T* x = static_cast<const T*>(values);
  const auto less = [&](int64_t i, int64_t j) {
    for (int64_t o = 0; o < lines.outer; ++o) {
      for (int64_t k = 0; k < lines.inner; ++k) {
        const auto a = read(x[lines.at(o, i, k)]), b = read(x[lines.at(o, j, k)]);
        if (before(a, b)) return true;
        if (before(b, a)) return false;
      }
    }
    return false;
  };
  sort_slices(lines.n, less, order, groups.inverse);
  return number_groups(lines.n, sorted ? order : nullptr, groups);
}

}  // namespace

Lines unique_lines(const Shape& shape, const Attributes& attributes) {
  if (!attributes.has("axis")) return {1, shape.numel(), 1};
  return lines_along(shape, attributes.i("axis", 0));
}

int64_t find_groups(DType dtype, const void* x, const Lines& lines, bool sorted, int64_t* order,
                    const UniqueGroups& groups) {
  if (dtype == DType::kFloat16) {
    return find<uint16_t>(x, lines, sorted, order, groups, half_to_float);
  }
  if (dtype == DType::kBFloat16) {
    return find<uint16_t>(x, lines, sorted, order, groups, bfloat16_to_float);
  }
  return with_number(dtype, [&](auto zero) {
    using T = decltype(zero);
    return find<T>(x, lines, sorted, order, groups, [](T value) { return value; });
  });
}

}  // namespace ofsdp::kernels::ops
