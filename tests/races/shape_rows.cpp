// Copies between strides, fills, reductions, folds, transforms for lines and matrices.
#include "kernels/cuda/matmul/transform.h"
#include "kernels/cuda/reduce/reduce.h"
#include "kernels/cuda/shape/movement.h"
#include "tests/races/table.h"

namespace ofsdp::races {
namespace {

using namespace kernels::cuda;
using Sizes = std::vector<int64_t>;

int64_t product_of_sizes(const Sizes& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

void add_copies(Table& table, size_t size) {
  struct Copy {
    const char* name;
    Sizes shape, src, dst;
  };
  const Copy copies[] = {
      {"transpose of matrices", {3, 50, 70}, {3500, 1, 50}, {3500, 70, 1}},
      {"transpose of heads", {2, 3, 20, 16}, {960, 16, 48, 1}, {960, 320, 16, 1}},
      {"part of rows", {40, 33}, {66, 1}, {33, 1}},
      {"expanded", {40, 33}, {0, 1}, {33, 1}}};
  for (const Copy& c : copies) {
    table.row(named(c.name, size), [c, size](Buffers& m) {
      void* const x = m.zeros(10500 * size);
      return strided_copy(size, c.shape, c.src, c.dst, x, m.zeros(10500 * size), nullptr);
    });
  }
  table.row(named("fill", size), [size](Buffers& m) {
    const uint64_t value[2] = {1, 2};
    return fill(size, value, m.zeros(700 * size), 700, nullptr);
  });
}

void add_triangles(Table& table) {
  table.row("triangle", [](Buffers& m) {
    void* const x = m.zeros(2 * 30 * 32 * 4);
    return triangle({2, 30, 32, 0, true}, 4, x, x, nullptr);
  });
  table.row("one hot", [](Buffers& m) {
    return one_hot({30, 11, 2, DType::kInt64}, 4, m.whole(60, 11), m.floats(2), m.floats(660),
                   nullptr);
  });
  table.row("counted part", [](Buffers& m) {
    return keep_counted(5, 20, 3, 1, m.whole(1, 20), 4, m.floats(300), m.floats(300), nullptr);
  });
}

struct Reduction {
  const char* name;
  Sizes shape;
  std::vector<bool> axes;
};

void add_reduction(Table& table, const Reduction& r, DType dtype, ReduceKind kind) {
  table.row(named("reduce", r.name, dtype, static_cast<int>(kind)), [=](Buffers& m) {
    const auto passes = plan_reduce(r.shape, r.axes);
    const int64_t n = product_of_sizes(r.shape);
    ReduceCall c;
    c.kind = kind;
    c.dtype = c.out_dtype = dtype;
    c.x = m.floats(dtype, n);
    c.y = m.floats(dtype, n);
    c.scratch = m.zeros(reduce_scratch(passes));
    return reduce(passes, c, nullptr);
  });
}

void add_folds(Table& table, const Reduction& r) {
  const GeneralReduceParams wide = general_reduce_params(DType::kFloat64, r.shape, r.axes);
  const GeneralReduceParams e = general_reduce_params(DType::kFloat32, r.shape, r.axes);
  const int64_t n = product_of_sizes(r.shape);
  table.row(named("fold", r.name), [=](Buffers& m) {
    return fold(GeneralReduceKind::kSum, wide, m.doubles(n), m.doubles(n), nullptr);
  });
  table.row(named("log of sum of exponentials", r.name), [=](Buffers& m) {
    return fold(GeneralReduceKind::kLogSumExp, e, m.floats(n), m.floats(n), nullptr);
  });
  table.row(named("mean variance", r.name), [=](Buffers& m) {
    void* const x = m.floats(n);
    return normalize(Normalization::kMeanVariance, e, x, x, nullptr);
  });
  table.row(named("gradient of a product", r.name), [=](Buffers& m) {
    return product_gradient(e, m.floats(n), m.floats(n), m.floats(n), nullptr);
  });
}

}  // namespace

void add_shape_rows(Table& table) {
  for (const size_t size : table.some<size_t>({2, 4, 1, 8})) add_copies(table, size);
  add_copies(table, 4);
  add_triangles(table);
  const Reduction reductions[] = {{"columns", {300, 96}, {true, false}},
                                  {"odd columns", {40, 3000}, {true, false}},
                                  {"rows", {40, 70}, {false, true}},
                                  {"long rows", {3, 5000}, {false, true}},
                                  {"both sides", {6, 5, 90}, {true, false, true}},
                                  {"all", {9000}, {true}}};
  for (const Reduction& r : reductions) {
    for (const DType dtype : table.floats()) {
      for (const ReduceKind kind : table.some({ReduceKind::kSum, ReduceKind::kMax})) {
        add_reduction(table, r, dtype, kind);
      }
    }
  }
  add_folds(table, {"rows", {40, 70}, {false, true}});
  add_folds(table, {"long rows", {3, 5000}, {false, true}});
  table.row("rows of ranks", [](Buffers& m) {
    const JoinParams e{.ranks = 3, .part = 416, .header = 16, .rank = 1, .rows = 9, .width = 40};
    return join_rows(e, m.floats(360), m.floats(3 * 416), nullptr);
  });
  table.row("running sum", [](Buffers& m) {
    ScanParams e;
    e.outer = 30;
    e.n = 20;
    e.inner = 3;
    void* const x = m.floats(1800);
    return running_sum(e, x, x, nullptr);
  });
  table.row("gradient of a running product", [](Buffers& m) {
    ScanParams e;
    e.outer = 30;
    e.n = 20;
    e.inner = 3;
    return running_product_grad(e, m.floats(1800), m.floats(1800), m.floats(1800), nullptr);
  });
  table.row("transform of lines", [](Buffers& m) {
    DftParams e;
    e.outer = 4;
    e.inner = 3;
    e.in = e.n = e.out = e.used = 12;
    e.x_parts = 2;
    return dft(e, {{4, 1, 3}, {3, 4, 1}}, m.floats(4 * 3 * 24), m.floats(4 * 3 * 24),
               m.zeros(dft_scratch(e)), nullptr);
  });
  table.row("determinants", [](Buffers& m) -> cudaError_t {
    constexpr int64_t kSize = 3, kCount = 70;
    const float* const x = m.floats(kSize * kSize * kCount);
    float* const y = m.floats(kCount);
    void* const scratch = m.zeros(determinant_scratch(kSize, kCount));
    OFSDP_CUDA_TRY(determinant(kSize, kCount, x, y, scratch, nullptr));
    return determinant_grad(kSize, kCount, y, x, m.floats(kSize * kSize * kCount), scratch,
                            nullptr);
  });
}

}  // namespace ofsdp::races
