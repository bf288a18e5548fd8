// Operators that sort: TopK and Unique.
//
// TopK(x, k), attributes axis, largest, sorted: returns the k largest (or smallest) elements along
// the axis and their indices, best first (even if sorted = 0, which leaves the order open). Among
// equal elements the lowest index comes first; NaN counts as the largest. dx is dy scattered to the
// indices.
// https://onnx.ai/onnx/operators/onnx__TopK.html

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/element_types.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

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

// Keeps the k best of one line as a heap with the worst on top, then sorts them in place. x and
// best step by `step`, so the heap is the output itself.
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

// Finds a line's k best elements; elements lie `step` apart. If y is null, writes only the indices.
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
  // Indices are needed even if the output is not wanted.
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

// Unique(x), attributes axis, sorted: the different slices of x along the axis (without it, the
// elements laid flat), in rising order or, with sorted = 0, in order of first appearance. The other
// outputs: each different slice's first index in x; for each slice of x, which different slice it
// is; each different slice's count. The values decide the shapes, so x must be known while
// planning. No gradient. https://onnx.ai/onnx/operators/onnx__Unique.html
//
// ofsdp.FoundUnique(x): Unique for an x that only the run computes, with room for as many different
// slices as x has slices; the importer uses it (importer/passes/specialize.h). Outputs: first
// appearances, numbers, counts, and how many different slices there are, int64[1]. After that
// number the first and third output repeat their last element (0 if there is none), so that a node
// that reads slices by them reads no other slices. To get the slices themselves, Gather by the
// first output. No gradient.
//
// Two NaN are equal here and come after all numbers, as in NumPy.

namespace unique {

// --- groups of equal slices: slice i of x[outer, n, inner] is x[:, i, :] ---

// Each has room for n numbers.
struct UniqueGroups {
  int64_t* first;    // per group, the slice that appears first
  int64_t* inverse;  // per slice, the group
  int64_t* counts;   // per group, how many slices
};

template <typename T>
bool before(T a, T b) {
  return a < b || (a == a && b != b);
}

// Returns whether slice i comes before slice j in x. Only this is compiled per type.
using SliceLess = bool (*)(const void* x, const Lines& lines, int64_t i, int64_t j);

template <typename T, auto read>
bool slice_less(const void* values, const Lines& lines, int64_t i, int64_t j) {
  const T* x = static_cast<const T*>(values);
  for (int64_t o = 0; o < lines.outer; ++o) {
    for (int64_t k = 0; k < lines.inner; ++k) {
      const auto a = read(x[lines.at(o, i, k)]), b = read(x[lines.at(o, j, k)]);
      if (before(a, b)) return true;
      if (before(b, a)) return false;
    }
  }
  return false;
}

SliceLess less_of(DType dtype) {
  if (dtype == DType::kFloat16) return slice_less<uint16_t, half_to_float>;
  if (dtype == DType::kBFloat16) return slice_less<uint16_t, bfloat16_to_float>;
  return with_number(dtype, []<typename T>(T) -> SliceLess {
    return slice_less<T, [](T value) { return value; }>;
  });
}

// Writes slices in rising order, equal ones as they appear; first_like: per slice, the first that
// equals it.
void sort_slices(const void* x, const Lines& lines, SliceLess less, int64_t* order,
                 int64_t* first_like) {
  std::iota(order, order + lines.n, 0);
  std::sort(order, order + lines.n, [&](int64_t i, int64_t j) {
    if (less(x, lines, i, j)) return true;
    return i < j && !less(x, lines, j, i);
  });
  for (int64_t k = 0; k < lines.n; ++k) {
    const bool starts = k == 0 || less(x, lines, order[k - 1], order[k]);
    first_like[order[k]] = starts ? order[k] : first_like[order[k - 1]];
  }
}

// Numbers groups in the order in which it meets their first slices. Either order meets the first
// slice before its equals, so `inverse` may hold first_like ahead of the loop.
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

// Returns slices along attribute axis; without it, the elements laid flat.
Lines unique_lines(const Shape& shape, const Attributes& attributes) {
  if (!attributes.has("axis")) return {1, shape.numel(), 1};
  return lines_along(shape, attributes.i("axis", 0));
}

// Finds the groups in rising order, or ordered by first slice, and returns how many there are.
// `order` is scratch for n numbers. Allocates nothing.
int64_t find_groups(DType dtype, const void* x, const Lines& lines, bool sorted, int64_t* order,
                    const UniqueGroups& groups) {
  sort_slices(x, lines, less_of(dtype), order, groups.inverse);
  return number_groups(lines.n, sorted ? order : nullptr, groups);
}

// --- Unique ---

struct Groups {
  std::vector<int64_t> first, inverse, counts;
};

Groups groups_of(const Constant& x, const Attributes& attributes) {
  const Lines lines = unique_lines(x.desc.shape, attributes);
  const auto n = static_cast<size_t>(lines.n);
  Groups found{std::vector<int64_t>(n), std::vector<int64_t>(n), std::vector<int64_t>(n)};
  std::vector<int64_t> order(n);
  const int64_t count =
      find_groups(x.desc.dtype, x.bytes.data(), lines, attributes.i("sorted", 1) != 0, order.data(),
                  {found.first.data(), found.inverse.data(), found.counts.data()});
  found.first.resize(static_cast<size_t>(count));
  found.counts.resize(static_cast<size_t>(count));
  return found;
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Constant* x = c.constant(0);
  if (x == nullptr) {
    return input_error(
        "input 'X' must be known before the run, found a computed value: the number of its "
        "different elements is the shape of the outputs");
  }
  Shape shape{x->desc.numel()};
  int axis = 0;
  if (c.attributes.has("axis")) {
    shape = x->desc.shape;
    OFSDP_ASSIGN_OR_RETURN(axis, normalize_axis(c.attributes.i("axis", 0), shape.rank()));
  }
  const int64_t n = shape[axis];
  shape[axis] = static_cast<int64_t>(groups_of(*x, c.attributes).first.size());
  const TensorDesc each{DType::kInt64, {shape[axis]}};
  return std::vector{TensorDesc{x->desc.dtype, shape}, each, {DType::kInt64, {n}}, each};
}

// Groups, found by comparing every slice with every other.
struct ReferenceGroups {
  std::vector<std::vector<double>> different;
  std::vector<double> first, inverse, counts;
};

ReferenceGroups reference_groups(const RefTensor& x, const Lines& lines, bool sorted) {
  std::vector<std::vector<double>> slices;
  ReferenceGroups g;
  for (int64_t i = 0; i < lines.n; ++i) {
    auto& slice = slices.emplace_back();
    for (int64_t o = 0; o < lines.outer; ++o) {
      for (int64_t k = 0; k < lines.inner; ++k) slice.push_back(x[lines.at(o, i, k)]);
    }
    if (std::ranges::find(g.different, slice) == g.different.end()) g.different.push_back(slice);
  }
  if (sorted) std::ranges::sort(g.different);
  for (const auto& one : g.different) {
    g.first.push_back(static_cast<double>(std::ranges::find(slices, one) - slices.begin()));
    g.counts.push_back(static_cast<double>(std::ranges::count(slices, one)));
  }
  for (const auto& one : slices) {
    const auto found = std::ranges::find(g.different, one);
    g.inverse.push_back(static_cast<double>(found - g.different.begin()));
  }
  return g;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Lines lines = unique_lines(c.inputs[0].desc.shape, c.attributes);
  const auto g = reference_groups(c.inputs[0], lines, c.attributes.i("sorted", 1) != 0);
  RefTensor y{c.output_descs[0], {}};
  for (int64_t o = 0; o < lines.outer; ++o) {
    for (const auto& values : g.different) {
      const auto begin = values.begin() + o * lines.inner;
      y.values.insert(y.values.end(), begin, begin + lines.inner);
    }
  }
  std::vector<RefTensor> all{y};
  for (const auto& values : {g.first, g.inverse, g.counts}) {
    if (all.size() < c.output_descs.size()) all.push_back({c.output_descs[all.size()], values});
  }
  return all;
}

Acceptance accepts(const Problem& p) {
  return accept_if(p.constant(0) != nullptr, "a computed input");
}

// The importer folds it, so it may be slow: planning computes the groups.
std::unique_ptr<Kernel> create(const Problem& p) {
  const Lines lines = unique_lines(p.in(0).shape, p.attributes);
  const auto bytes = static_cast<size_t>(lines.inner) * dtype_size(p.in(0).dtype);
  return make_kernel(
      [lines, bytes, g = groups_of(*p.constant(0), p.attributes)](const KernelArgs& a) {
        std::byte* to = a.outputs[0].data;
        for (int64_t o = 0; o < lines.outer && to != nullptr && bytes > 0; ++o) {
          for (int64_t i : g.first) {
            std::memcpy(to, a.inputs[0].data + static_cast<size_t>(o * lines.n + i) * bytes, bytes);
            to += bytes;
          }
        }
        const std::vector<int64_t>* numbers[] = {&g.first, &g.inverse, &g.counts};
        for (size_t i = 1; i < a.outputs.size(); ++i) {
          if (a.outputs[i].data == nullptr) continue;
          std::copy(numbers[i - 1]->begin(), numbers[i - 1]->end(), a.out<int64_t>(i));
        }
      });
}

// --- FoundUnique ---

Result<std::vector<TensorDesc>> found_infer(const InferContext& c) {
  const Shape& x = c.inputs[0].shape;
  if (c.attributes.has("axis")) {
    OFSDP_RETURN_IF_ERROR(normalize_axis(c.attributes.i("axis", 0), x.rank()).status());
  }
  const TensorDesc each{DType::kInt64, {unique_lines(x, c.attributes).n}};
  return std::vector{each, each, each, TensorDesc{DType::kInt64, {1}}};
}

std::vector<RefTensor> found_reference(const ReferenceContext& c) {
  const Lines lines = unique_lines(c.inputs[0].desc.shape, c.attributes);
  auto g = reference_groups(c.inputs[0], lines, c.attributes.i("sorted", 1) != 0);
  for (auto* each : {&g.first, &g.counts}) {
    each->resize(static_cast<size_t>(lines.n), each->empty() ? 0 : each->back());
  }
  return {{c.output_descs[0], g.first},
          {c.output_descs[1], g.inverse},
          {c.output_descs[2], g.counts},
          {c.output_descs[3], {static_cast<double>(g.different.size())}}};
}

std::unique_ptr<Kernel> found_create(const Problem& p) {
  const Lines lines = unique_lines(p.in(0).shape, p.attributes);
  const bool sorted = p.attributes.i("sorted", 1) != 0;
  return make_kernel(
      [lines, sorted, dtype = p.in(0).dtype](const KernelArgs& a) {
        const UniqueGroups groups{a.out<int64_t>(0), a.out<int64_t>(1), a.out<int64_t>(2)};
        auto* order = reinterpret_cast<int64_t*>(a.workspace);
        const int64_t count = find_groups(dtype, a.inputs[0].data, lines, sorted, order, groups);
        for (int64_t* of_each : {groups.first, groups.counts}) {
          std::fill(of_each + count, of_each + lines.n, count == 0 ? 0 : of_each[count - 1]);
        }
        *a.out<int64_t>(3) = count;
      },
      static_cast<size_t>(lines.n) * sizeof(int64_t));
}

}  // namespace unique

void add_unique(Registry& registry) {
  using namespace unique;
  registry.add(make_op("Unique", {infer, nullptr, reference}, {{"groups", accepts, create}},
                       {.first_opset = 11, .constant_inputs = {0}}));
  registry.add_own(make_op("FoundUnique", {found_infer, nullptr, found_reference},
                           {{"groups", accepts_plain, found_create}}));
}

}  // namespace ofsdp::kernels::ops
