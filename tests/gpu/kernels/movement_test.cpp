// Strided copies against a loop over all indices; reductions, gather and dropout against loops in
// double.
#include "kernels/cuda/shape/movement.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "kernels/core/op_def.h"
#include "kernels/cuda/indexing/gather_scatter.h"
#include "kernels/cuda/random/random.h"
#include "kernels/cuda/reduce/reduce.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace movement_test {

using Doubles = std::vector<double>;
using Sizes = std::vector<int64_t>;

class CudaMovement : public DeviceTest {};

int64_t product(const Sizes& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// f(index of each axis), row-major.
void for_indices(const Sizes& shape, const std::function<void(const Sizes&)>& f) {
  for (int64_t i = 0; i < product(shape); ++i) {
    Sizes index(shape.size());
    int64_t rest = i;
    for (size_t a = shape.size(); a-- > 0;) {
      index[a] = rest % shape[a];
      rest /= shape[a];
    }
    f(index);
  }
}

int64_t dot(const Sizes& index, const Sizes& strides) {
  return std::inner_product(index.begin(), index.end(), strides.begin(), int64_t{0});
}

Doubles counted(int64_t n) {
  Doubles v;
  for (int64_t i = 0; i < n; ++i) v.push_back(static_cast<double>(i % 251));
  return v;
}

TEST_F(CudaMovement, TransposesOfEverySize) {
  struct Case {
    Sizes shape, perm;
  };
  const std::vector<Case> cases = {{{33, 65}, {1, 0}},
                                   {{1, 7}, {1, 0}},
                                   {{2, 3, 40, 16}, {0, 2, 1, 3}},
                                   {{2, 40, 9, 3}, {0, 3, 1, 2}},
                                   {{3, 35, 41}, {0, 2, 1}},
                                   {{35, 3, 41}, {2, 1, 0}},
                                   {{4, 5, 6, 7}, {3, 2, 1, 0}},
                                   {{64, 64}, {1, 0}},
                                   {{0, 4}, {1, 0}},
                                   {{5}, {0}}};
  for (DType dtype : {DType::kUInt8, DType::kBFloat16, DType::kFloat32, DType::kInt64}) {
    for (const Case& c : cases) {
      for (int shift : {0, 1}) {
        Sizes shape, from;
        const Sizes strides = dense_strides(c.shape);
        for (int64_t p : c.perm) {
          shape.push_back(c.shape[static_cast<size_t>(p)]);
          from.push_back(strides[static_cast<size_t>(p)]);
        }
        const int64_t n = product(shape);
        Tensor x(dtype, counted(n), shift), y(dtype, Tensor::blank(n), shift);
        same_twice({&y}, [&] {
          return strided_copy(dtype_size(dtype), shape, from, dense_strides(shape), x.data(),
                              y.data(), nullptr);
        });
        Doubles expected;
        const Doubles values = x.values();
        for_indices(shape, [&](const Sizes& i) {
          expected.push_back(values[static_cast<size_t>(dot(i, from))]);
        });
        EXPECT_EQ(y.values(), expected) << Shape(c.shape).text() << " " << dtype_name(dtype);
      }
    }
  }
}

TEST_F(CudaMovement, SlicesBackwardsExpansionsAndPartsOfALargerTensor) {
  // y[:, 2:7] of [4, 10] = every second column of x [4, 12], from the last on.
  Tensor x(DType::kFloat32, counted(48)), y(DType::kFloat32, Doubles(40, -1.0));
  same_twice({&y}, [&] {
    return strided_copy(4, {4, 5}, {12, -2}, {10, 1}, x.as<float>() + 11, y.as<float>() + 2,
                        nullptr);
  });
  Doubles expected(40, -1.0);
  for (size_t r = 0; r < 4; ++r) {
    for (size_t c = 0; c < 5; ++c)
      expected[r * 10 + 2 + c] = static_cast<double>(r * 12 + 11 - 2 * c);
  }
  EXPECT_EQ(y.values(), expected);
  Tensor wide(DType::kBFloat16, Tensor::blank(24)), row(DType::kBFloat16, counted(8));
  EXPECT_CUDA(strided_copy(2, {3, 8}, {0, 1}, {8, 1}, row.data(), wide.data(), nullptr));
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(wide.values()[i], static_cast<double>(i % 8));
  const uint16_t seven = 7;
  Tensor filled(DType::kUInt16, Tensor::blank(33));
  EXPECT_CUDA(fill(2, &seven, filled.data(), 33, nullptr));
  EXPECT_EQ(filled.values(), Doubles(33, 7.0));
}

TEST_F(CudaMovement, PlansWidenElementsAndUseTiles) {
  void* aligned = reinterpret_cast<void*>(4096);
  const CopyPlan heads = plan_copy(2, {2, 12, 128, 64}, {128 * 768, 64, 768, 1},
                                   {12 * 128 * 64, 128 * 64, 64, 1}, aligned, aligned);
  EXPECT_EQ(heads.size, 16u);
  EXPECT_EQ(heads.tile_axis, -1);
  const CopyPlan turned = plan_copy(2, {64, 128}, {1, 64}, {128, 1}, aligned, aligned);
  EXPECT_EQ(turned.size, 2u);
  EXPECT_EQ(turned.tile_axis, 0);
}

// --- reductions ---

TEST_F(CudaMovement, ReductionsOverAnyAxes) {
  struct Case {
    Sizes shape;
    std::vector<bool> reduced;
  };
  const std::vector<Case> cases = {{{1}, {true}},
                                   {{31}, {true}},
                                   {{33, 5}, {true, false}},
                                   {{5, 33}, {false, true}},
                                   {{3, 1023}, {false, true}},
                                   {{2, 9001}, {false, true}},
                                   {{700, 8}, {true, false}},
                                   {{1030, 3}, {true, false}},
                                   {{4, 37, 6}, {false, true, false}},
                                   {{4, 37, 6}, {true, false, true}},
                                   {{3, 4, 5, 6}, {true, false, true, false}},
                                   {{20000}, {true}},
                                   {{3, 4}, {false, false}},
                                   {{0, 4}, {true, false}},
                                   {{0, 4}, {false, true}}};
  for (DType dtype : kFloats) {
    for (const Case& c : cases) {
      for (int k = 0; k < 6; ++k) {
        const auto kind = static_cast<ReduceKind>(k);
        const int shift = k % 2;
        const int64_t n = product(c.shape);
        Sizes kept;
        for (size_t a = 0; a < c.shape.size(); ++a) kept.push_back(c.reduced[a] ? 1 : c.shape[a]);
        Tensor x(dtype, numbers(n, 1, kind == ReduceKind::kProduct ? 1 : 2), shift),
            y(DType::kFloat32, Tensor::blank(product(kept)));
        const auto passes = plan_reduce(c.shape, c.reduced);
        Tensor scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(reduce_scratch(passes))));
        same_twice({&y}, [&] {
          return reduce(passes,
                        {kind, dtype, DType::kFloat32, 0.5f, x.data(), y.data(), scratch.data()},
                        nullptr);
        });
        const double start = kind == ReduceKind::kProduct ? 1
                             : kind == ReduceKind::kMax   ? -INFINITY
                             : kind == ReduceKind::kMin   ? INFINITY
                                                          : 0;
        Doubles expected(static_cast<size_t>(product(kept)), start);
        const Doubles values = x.values();
        const Sizes to = broadcast_strides(kept, c.shape);
        size_t i = 0;
        for_indices(c.shape, [&](const Sizes& index) {
          double& e = expected[static_cast<size_t>(dot(index, to))];
          const double v = values[i++];
          switch (kind) {
            case ReduceKind::kSum:
              e += v;
              break;
            case ReduceKind::kSumAbs:
              e += std::abs(v);
              break;
            case ReduceKind::kSumSquares:
              e += v * v;
              break;
            case ReduceKind::kProduct:
              e *= v;
              break;
            case ReduceKind::kMax:
              e = std::max(e, v);
              break;
            case ReduceKind::kMin:
              e = std::min(e, v);
              break;
          }
        });
        for (double& e : expected) e *= 0.5;
        expect_close(y.values(), expected, 2e-4,
                     Shape(c.shape).text() + " kind " + std::to_string(k));
      }
    }
  }
}

TEST_F(CudaMovement, ReductionsKeepNaNAndRoundOnce) {
  Tensor x(DType::kBFloat16, {1, 2, std::nan(""), 4}), y(DType::kBFloat16, {0, 0});
  const auto passes = plan_reduce({2, 2}, {false, true});
  EXPECT_CUDA(
      reduce(passes,
             {ReduceKind::kMax, DType::kBFloat16, DType::kBFloat16, 1, x.data(), y.data(), nullptr},
             nullptr));
  EXPECT_EQ(y.values()[0], 2);
  EXPECT_TRUE(std::isnan(y.values()[1]));
}

// --- gather ---

struct Rows {
  GatherParams e;
  int same;  // how often a row repeats an index
};

TEST_F(CudaMovement, GatherAndItsGradient) {
  const std::vector<Rows> cases = {
      {{1, 7, 5, 8}, 1},   {{1, 50, 64, 300}, 1}, {{1, 2, 16, 200}, 70}, {{1, 3, 33, 129}, 40},
      {{2, 3, 4, 5}, 1},   {{1, 9, 1, 31}, 2},    {{1, 5, 8, 0}, 1},     {{1, 4, 260, 64}, 64},
      {{1, 4, 8, 96}, 33}, {{3, 40, 1028, 65}, 5}};
  for (DType dtype : kFloats) {
    for (const Rows& rows : cases) {
      for (bool wide : {false, true}) {
        GatherParams e = rows.e;
        SCOPED_TRACE(std::to_string(e.count) + " of " + std::to_string(e.n) + " rows of " +
                     std::to_string(e.inner));
        Doubles index;
        for (int64_t i = 0; i < e.count; ++i) {
          const int64_t at = i / rows.same * 11 % e.n;
          index.push_back(static_cast<double>(i % 5 == 3 ? at - e.n : at));
        }
        e.index_dtype = wide ? DType::kInt64 : DType::kInt32;
        Tensor indices(e.index_dtype, index), data(dtype, numbers(e.outer * e.n * e.inner, 1)),
            y(dtype, Tensor::blank(e.outer * e.count * e.inner)), fault(DType::kInt64, {0, 0, 0});
        e.indices = indices.data();
        e.fault = {fault.as<ofsdp_data_fault>(), 1};
        same_twice({&y},
                   [&] { return gather(e, dtype_size(dtype), data.data(), y.data(), nullptr); });
        Tensor dy(dtype, numbers(e.outer * e.count * e.inner, 2)),
            dx(dtype, numbers(e.outer * e.n * e.inner, 3)),
            scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(gather_grad_scratch(e))));
        const Doubles values = data.values(), slopes = dy.values();
        Doubles expected(y.values().size()), sums = wide ? dx.values() : Doubles(values.size());
        for (int64_t o = 0; o < e.outer; ++o) {
          for (int64_t i = 0; i < e.count; ++i) {
            const auto given = static_cast<int64_t>(index[static_cast<size_t>(i)]);
            const int64_t k = given < 0 ? given + e.n : given;
            for (int64_t j = 0; j < e.inner; ++j) {
              const auto at_y = static_cast<size_t>((o * e.count + i) * e.inner + j);
              const auto at_x = static_cast<size_t>((o * e.n + k) * e.inner + j);
              expected[at_y] = values[at_x];
              sums[at_x] += slopes[at_y];
            }
          }
        }
        EXPECT_EQ(y.values(), expected);
        same_twice({&dx}, [&] {
          return gather_grad(e, dtype, dy.data(), dx.data(), wide, scratch.data(), nullptr);
        });
        expect_close(dx.values(), sums, rounding(dtype), "dx");
        EXPECT_EQ(fault.values(), (Doubles{0, 0, 0}));
      }
    }
  }
}

// The order in embedding.cu for one column: a run with equal keys at sorted places [begin, end),
// cut at multiples of `sizes`, the coarsest first.
float added_in_order(const std::vector<float>& rows, size_t begin, size_t end,
                     std::span<const size_t> sizes) {
  float sum = 0;
  if (sizes.empty()) {
    for (size_t i = begin; i < end; ++i) sum += rows[i];
    return sum;
  }
  for (size_t at = begin; at < end;) {
    const size_t next = std::min(end, (at / sizes[0] + 1) * sizes[0]);
    const float part = added_in_order(rows, at, next, sizes.subspan(1));
    sum = at == begin ? part : sum + part;
    at = next;
  }
  return sum;
}

// The gradient, added to `before` (empty: to zeros).
Doubles rows_in_order(const Sizes& index, const Doubles& slopes, size_t n, size_t inner,
                      const Doubles& before) {
  constexpr size_t kSizes[] = {64 * 32, 32};
  std::vector<size_t> places(index.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::ranges::stable_sort(places, {}, [&](size_t i) { return index[i]; });
  Doubles made = before.empty() ? Doubles(n * inner) : before;
  std::vector<float> rows(places.size());
  for (size_t j = 0; j < inner; ++j) {
    for (size_t k = 0; k < rows.size(); ++k) {
      rows[k] = static_cast<float>(slopes[places[k] * inner + j]);
    }
    for (size_t begin = 0; begin < rows.size();) {
      const int64_t key = index[places[begin]];
      size_t end = begin;
      while (end < rows.size() && index[places[end]] == key) ++end;
      double& to = made[static_cast<size_t>(key) * inner + j];
      const float sum = added_in_order(rows, begin, end, kSizes);
      to = before.empty() ? sum : static_cast<float>(to) + sum;
      begin = end;
    }
  }
  return made;
}

// Equal keys like token types, random ones, and runs that begin and end at every boundary.
std::vector<Sizes> key_patterns(int64_t n) {
  constexpr int64_t kCount = 6277;
  Sizes equal(kCount, 2), random(kCount), runs;
  for (size_t i = 0; i < random.size(); ++i) {
    random[i] = static_cast<int64_t>((i * 2654435761u >> 7) % static_cast<size_t>(n));
  }
  for (const int64_t length : {1, 31, 2016, 2049, 2047, 33, 64, 36}) {
    runs.insert(runs.end(), static_cast<size_t>(length), runs.empty() ? 0 : runs.back() + 1);
  }
  Sizes scattered(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) scattered[i * 7919 % runs.size()] = runs[i];
  return {equal, random, scattered};
}

TEST_F(CudaMovement, EqualIndicesAreAddedInChunksThenInGroupsOfThese) {
  constexpr int64_t kRows = 9;
  for (const Sizes& index : key_patterns(kRows)) {
    for (DType dtype : kFloats) {
      for (int64_t inner : {3, 8}) {
        const bool accumulate = inner == 8;
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " rows of " + std::to_string(inner));
        const auto count = static_cast<int64_t>(index.size());
        Tensor indices(DType::kInt64, Doubles(index.begin(), index.end()));
        GatherParams e{1, kRows, inner, count, DType::kInt64, indices.data()};
        Tensor dy(dtype, numbers(count * inner, 2)), dx(dtype, numbers(kRows * inner, 3)),
            scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(gather_grad_scratch(e))));
        const Doubles before = accumulate ? dx.values() : Doubles();
        const Tensor expected(
            dtype, rows_in_order(index, dy.values(), kRows, static_cast<size_t>(inner), before));
        same_twice({&dx}, [&] {
          return gather_grad(e, dtype, dy.data(), dx.data(), accumulate, scratch.data(), nullptr);
        });
        EXPECT_EQ(dx.values(), expected.values());
      }
    }
  }
}

TEST_F(CudaMovement, AnIndexOutOfRangeIsNoted) {
  Tensor indices(DType::kInt64, {1, 9}), data(DType::kFloat32, counted(6)),
      y(DType::kFloat32, {0, 0, 0, 0}), fault(DType::kInt64, {0, 0, 0});
  const GatherParams e{
      1, 3, 2, 2, DType::kInt64, indices.data(), {fault.as<ofsdp_data_fault>(), 4}};
  EXPECT_CUDA(gather(e, 4, data.data(), y.data(), nullptr));
  EXPECT_EQ(fault.values(), (Doubles{4, 9, 3}));
  EXPECT_EQ(y.values(), (Doubles{2, 3, 0, 1}));
}

// --- dropout ---

TEST_F(CudaMovement, DropoutDropsWhatTheCpuDrops) {
  const Registry registry = make_registry();
  for (DType dtype : kFloats) {
    for (int64_t elements : {1, 31, 64, 200, 1023}) {
      for (double ratio : {0.0, 0.1, 0.5, 1.0}) {
        const int64_t samples = 3;
        const Sizes global = {5, 1000000007, 2};
        Tensor index(DType::kInt64, {5, 1000000007, 2}), x(dtype, numbers(samples * elements, 1)),
            y(dtype, Tensor::blank(samples * elements)),
            mask(DType::kBool, Doubles(static_cast<size_t>(samples * elements)));
        const RandomInput input{77, 12};
        std::vector<std::byte> bytes(sizeof input);
        std::memcpy(bytes.data(), &input, sizeof input);
        Tensor random(DType::kUInt8, Doubles(sizeof input));
        random.assign(bytes);
        const DropoutCall c{dtype,
                            samples,
                            elements,
                            ratio,
                            99,
                            random.as<RandomInput>(),
                            index.as<int64_t>(),
                            x.data(),
                            y.data(),
                            mask.as<bool>()};
        same_twice({&y, &mask}, [&] { return dropout(c, nullptr); });
        const TensorDesc desc{dtype, {samples, elements}};
        StepContext step{77, 12, global};
        const auto expected = registry.get("Dropout").reference(
            {{},
             {{desc, x.values()}, {{DType::kFloat32, {}}, {ratio}}, {{DType::kBool, {}}, {1}}},
             {desc, {DType::kBool, desc.shape}},
             99,
             step});
        EXPECT_EQ(mask.values(), expected[1].values);
        expect_close(y.values(), expected[0].values, rounding(dtype), "y");
        Tensor dy(dtype, numbers(samples * elements, 4)),
            dx(dtype, Tensor::blank(samples * elements));
        same_twice({&dx}, [&] {
          return dropout_grad(dtype, dy.data(), mask.as<bool>(), dx.data(), samples * elements,
                              ratio, nullptr);
        });
        Doubles slopes = dy.values();
        for (size_t i = 0; i < slopes.size(); ++i)
          slopes[i] *= expected[1].values[i] * (ratio < 1 ? 1 / (1 - ratio) : 0);
        expect_close(dx.values(), slopes, rounding(dtype), "dx");
      }
    }
  }
}

}  // namespace movement_test
}  // namespace ofsdp::kernels::cuda
