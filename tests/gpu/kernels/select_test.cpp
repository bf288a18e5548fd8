// Selection and scatters at sizes that need more than one block, chunk or way: against loops.
#include <algorithm>
#include <numeric>

#include "kernels/cuda/indexing/gather_scatter.h"
#include "kernels/cuda/indexing/selection.h"
#include "kernels/cuda/shape/movement.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace select_test {

using Doubles = std::vector<double>;

class CudaSelect : public DeviceTest {};

Doubles indices(int64_t n, int64_t below, uint64_t seed) {
  Doubles made = numbers(n, seed, 1);
  for (double& v : made) v = std::floor((v + 1) / 2 * static_cast<double>(below) * 0.999);
  return made;
}

// The places of the k best in each line; among equal values the first.
Doubles best_of(const TopParams& e, const Doubles& x) {
  Doubles made(static_cast<size_t>(e.outer * e.k * e.inner));
  for (int64_t line = 0; line < e.outer * e.inner; ++line) {
    const int64_t o = line / e.inner, j = line % e.inner;
    const auto value = [&](int64_t i) {
      return x[static_cast<size_t>((o * e.n + i) * e.inner + j)] * (e.largest ? -1 : 1);
    };
    std::vector<int64_t> order(static_cast<size_t>(e.n));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return value(a) < value(b); });
    for (int64_t r = 0; r < e.k; ++r) {
      made[static_cast<size_t>((o * e.k + r) * e.inner + j)] =
          static_cast<double>(order[static_cast<size_t>(r)]);
    }
  }
  return made;
}

// By walks of a warp and of a thread, and by sorting; some values repeat.
TEST_F(CudaSelect, TopK) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt32, DType::kInt64}) {
    for (const auto& [outer, n, inner, k] : {std::array<int64_t, 4>{3, 1023, 1, 5},
                                             {2, 33, 70, 4},
                                             {3, 700, 1, 50},
                                             {2, 300, 5, 300},
                                             {1, 4097, 1, 4097}}) {
      for (const bool largest : {true, false}) {
        TopParams e{dtype, outer, n, inner, k};
        e.largest = largest;
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(n) + " " +
                     std::to_string(k));
        Doubles given = numbers(outer * n * inner, 1, 40);
        for (double& v : given) v = std::floor(v);
        Tensor x(dtype, given), y(dtype, Tensor::blank(outer * k * inner)),
            places(DType::kInt64, Tensor::blank(outer * k * inner)),
            scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(top_scratch(e)) + 1));
        if (top_scratch(e) == 0 && n * k > 100000) continue;  // 64 bits: slow
        same_twice({&y, &places}, [&] {
          return top(e, x.data(), y.data(), places.as<int64_t>(), scratch.data(), nullptr);
        });
        EXPECT_EQ(places.values(), best_of(e, given));
      }
    }
  }
}

TEST_F(CudaSelect, TopKOfNanAndZeros) {
  const double nan = std::nan("");
  for (const int64_t k : {int64_t{5}, int64_t{40}}) {
    Doubles given(1000, -7.0);
    given[3] = nan;
    given[10] = -0.0;
    given[20] = 0;
    given[30] = 1;
    TopParams e{DType::kFloat32, 1, 1000, 1, k};
    Tensor x(DType::kFloat32, given), places(DType::kInt64, Tensor::blank(k)),
        scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(top_scratch(e)) + 1));
    EXPECT_CUDA(top(e, x.data(), nullptr, places.as<int64_t>(), scratch.data(), nullptr));
    const Doubles found = places.values();
    EXPECT_EQ(Doubles(found.begin(), found.begin() + 5), (Doubles{3, 30, 10, 20, 0}));
  }
}

double combined(ScatterKind kind, double a, double b) {
  switch (kind) {
    case ScatterKind::kAdd:
      return a + b;
    case ScatterKind::kMul:
      return a * b;
    case ScatterKind::kMax:
      return std::max(a, b);
    case ScatterKind::kMin:
      return std::min(a, b);
    default:
      return b;
  }
}

TEST_F(CudaSelect, Scatter) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt64}) {
    for (const auto& [rows, inner, count] : {std::array<int64_t, 3>{500, 1, 4097},
                                             {7, 8, 300},
                                             {40, 3, 1023},
                                             {3, 2, 4097},
                                             {1, 1, 1024}}) {
      for (const ScatterKind kind : {ScatterKind::kNone, ScatterKind::kAdd, ScatterKind::kMul,
                                     ScatterKind::kMax, ScatterKind::kMin}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(count));
        const ScatterParams e{kind, dtype, rows, inner, count};
        Doubles given = numbers(count * inner, 2, 1);
        // Products of ones and minus ones stay exact.
        for (double& v : given)
          v = kind == ScatterKind::kMul ? (v < 0 ? -1 : 1) : std::round(v * 8);
        const Doubles at = indices(count, rows, 3);
        Tensor to(DType::kInt64, at), updates(dtype, given),
            y(dtype, Doubles(static_cast<size_t>(rows * inner), 1)),
            scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(scatter_scratch(e))));
        Doubles expected = y.values();
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t j = 0; j < inner; ++j) {
            double& v = expected[static_cast<size_t>(
                at[static_cast<size_t>(i)] * static_cast<double>(inner) + static_cast<double>(j))];
            v = combined(kind, v, given[static_cast<size_t>(i * inner + j)]);
          }
        }
        same_twice({&y}, [&] {
          return scatter(e, to.as<int64_t>(), updates.data(), y.data(), scratch.data(), nullptr);
        });
        EXPECT_EQ(y.values(), expected);
      }
    }
  }
}

TEST_F(CudaSelect, FoundPositions) {
  for (const int64_t n : {1, 2047, 2048, 2049, 600001}) {
    const FoundParams e{n, 1, false, true};
    Doubles x = numbers(n, 5, 1);
    for (double& v : x) v = v > 0.4 ? 1 : 0;
    Doubles expected;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] != 0) expected.push_back(static_cast<double>(i));
    }
    const auto count = static_cast<double>(expected.size());
    expected.resize(x.size(), expected.empty() ? 0 : expected.back());
    Tensor from(DType::kUInt8, x), to(DType::kInt64, Tensor::blank(n)), found(DType::kInt64, {9}),
        scratch(DType::kUInt8, Tensor::blank(static_cast<int64_t>(found_scratch(e))));
    same_twice({&to, &found}, [&] {
      return found_positions(e, from.data(), to.as<int64_t>(), found.as<int64_t>(), scratch.data(),
                             nullptr);
    });
    EXPECT_EQ(to.values(), expected) << n;
    EXPECT_EQ(found.values(), Doubles{count}) << n;
  }
}

TEST_F(CudaSelect, TriangleInPacksAndWithout) {
  for (const int64_t columns : {64, 37}) {
    for (const auto& [upper, k] :
         {std::pair{true, int64_t{0}}, {false, int64_t{-3}}, {true, int64_t{5}}}) {
      const TriangleParams e{2, 50, columns, k, upper};
      Tensor x(DType::kBFloat16, numbers(100 * columns, 1)),
          y(DType::kBFloat16, Tensor::blank(100 * columns));
      same_twice({&y}, [&] { return triangle(e, 2, x.data(), y.data(), nullptr); });
      Doubles expected = x.values();
      for (int64_t i = 0; i < 100 * columns; ++i) {
        const int64_t above = i % columns - i / columns % 50;
        if (upper ? above < k : above > k) expected[static_cast<size_t>(i)] = 0;
      }
      EXPECT_EQ(y.values(), expected);
    }
  }
}

}  // namespace select_test
}  // namespace ofsdp::kernels::cuda
