// Products with odd extents, which are rounded up, and the choice of an algorithm, with the library
// that replaces cuBLASLt (fake_cublaslt.cpp).
#include "kernels/cuda/matmul/product.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/matmul/lt_product.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace {

// Small whole numbers: float32 holds every sum exactly, in any order.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns, int64_t row, int seed)
      : rows_(rows), columns_(columns), row_(row), values_(static_cast<size_t>(rows * row), 99) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        at(i, j) = static_cast<float>((i * 7 + j * 5 + seed) % 11 - 5);
      }
    }
    cudaMalloc(&memory_, bytes());
    cudaMemcpy(memory_, values_.data(), bytes(), cudaMemcpyHostToDevice);
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  ~Matrix() { cudaFree(memory_); }

  float& at(int64_t i, int64_t j) { return values_[static_cast<size_t>(i * row_ + j)]; }
  float turned(bool transposed, int64_t i, int64_t j) { return transposed ? at(j, i) : at(i, j); }
  void* data() const { return memory_; }
  std::vector<float> found() const {
    std::vector<float> all(values_.size());
    cudaMemcpy(all.data(), memory_, bytes(), cudaMemcpyDeviceToHost);
    return all;
  }
  const std::vector<float>& values() const { return values_; }
  // Returns the elements in the rows, not between them.
  std::vector<float> within(const std::vector<float>& all) const {
    std::vector<float> kept;
    for (int64_t i = 0; i < rows_; ++i) {
      const auto from = all.begin() + i * row_;
      kept.insert(kept.end(), from, from + columns_);
    }
    return kept;
  }

 private:
  size_t bytes() const { return values_.size() * sizeof(float); }
  int64_t rows_, columns_, row_;
  std::vector<float> values_;
  void* memory_ = nullptr;
};

class OddExtents : public testing::Test {
 protected:
  OddExtents() {
    setenv("OFSDP_CUBLASLT_LIBRARY", OFSDP_FAKE_CUBLASLT, 1);
    library_ = dlopen(OFSDP_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    reinterpret_cast<void (*)(int)>(dlsym(library_, "fake_lt_offer"))(3);
  }

  // Runs the product unpadded and, where that helps, padded; both must equal the defined product.
  // Returns whether it was padded, which needs room for copies.
  bool check(const ProductShape& s) {
    const size_t whole = expect_product(s, int64_t{1} << 40);
    return expect_product(s, 1) > whole;
  }

 private:
  void* library_ = nullptr;

  // Returns the bytes of the product's workspace.
  size_t expect_product(const ProductShape& s, int64_t min_padded) {
    Matrix a(s.transpose_a ? s.inner : s.rows, s.transpose_a ? s.rows : s.inner, s.row_a(), 1);
    Matrix b(s.transpose_b ? s.columns : s.inner, s.transpose_b ? s.inner : s.columns, s.row_b(),
             2);
    Matrix d(s.rows, s.columns, s.row_d(), 3), c(s.rows, s.columns, s.row_d(), 4);
    Matrix vector(1, std::max(s.rows, s.columns), std::max(s.rows, s.columns), 5);
    DeviceState device;
    const auto product = make_product(device, s, min_padded);
    EXPECT_NE(product, nullptr);
    if (product == nullptr) return 0;
    void* workspace = nullptr;
    cudaMalloc(&workspace, product->workspace_bytes() + 1);
    EXPECT_EQ(product->run(nullptr, {.a = a.data(),
                                     .b = b.data(),
                                     .c = c.data(),
                                     .bias = vector.data(),
                                     .d = d.data(),
                                     .bias_grad = vector.data(),
                                     .workspace = workspace}),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cudaFree(workspace);
    for (int64_t i = 0; i < s.rows; ++i) {
      for (int64_t j = 0; j < s.columns; ++j) {
        float sum = s.beta * c.at(i, j) + (s.bias ? vector.at(0, j) : 0.0f);
        for (int64_t k = 0; k < s.inner; ++k) {
          sum += s.alpha * a.turned(s.transpose_a, i, k) * b.turned(s.transpose_b, k, j);
        }
        d.at(i, j) = sum;
      }
    }
    EXPECT_EQ(d.within(d.found()), d.within(d.values()));
    if (s.bias_grad == BiasGrad::kOfA) {
      for (int64_t i = 0; i < s.rows; ++i) {
        vector.at(0, i) = 0;
        for (int64_t k = 0; k < s.inner; ++k) vector.at(0, i) += a.turned(s.transpose_a, i, k);
      }
    }
    if (s.bias_grad == BiasGrad::kOfB) {
      for (int64_t j = 0; j < s.columns; ++j) {
        vector.at(0, j) = 0;
        for (int64_t k = 0; k < s.inner; ++k) vector.at(0, j) += b.turned(s.transpose_b, k, j);
      }
    }
    EXPECT_EQ(vector.found(), vector.values());
    EXPECT_EQ(fake_cuda::take_broken_rules(), std::vector<std::string>{});
    return product->workspace_bytes();
  }
};

// D in float32 from 16 bits, added to the old values: whole numbers that bfloat16 cannot hold.
TEST_F(OddExtents, WideResultsAreNotRounded) {
  const ProductShape s{.dtype = DType::kBFloat16,
                       .rows = 3,
                       .columns = 5,
                       .inner = 4,
                       .transpose_a = true,
                       .beta = 1,
                       .wide = true};
  std::vector<uint16_t> a, b;  // [inner, rows], [inner, columns]
  const auto bits = [](int64_t value) {
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
  };
  std::vector<float> d, expected;
  for (int64_t i = 0; i < s.inner * s.rows; ++i) a.push_back(bits(i % 7 + 120));
  for (int64_t i = 0; i < s.inner * s.columns; ++i) b.push_back(bits(i % 5 - 127));
  for (int64_t i = 0; i < s.rows; ++i) {
    for (int64_t j = 0; j < s.columns; ++j) {
      int64_t sum = i * 1001 + j;
      d.push_back(static_cast<float>(sum));
      for (int64_t k = 0; k < s.inner; ++k) {
        sum += ((k * s.rows + i) % 7 + 120) * ((k * s.columns + j) % 5 - 127);
      }
      expected.push_back(static_cast<float>(sum));
    }
  }
  const auto on_device = [](const auto& values) {
    void* memory = nullptr;
    const size_t bytes = values.size() * sizeof(values[0]);
    cudaMalloc(&memory, bytes);
    cudaMemcpy(memory, values.data(), bytes, cudaMemcpyHostToDevice);
    return memory;
  };
  void *const left = on_device(a), *const right = on_device(b), *const result = on_device(d);
  DeviceState device;
  const auto product = make_product(device, s, 1);
  ASSERT_NE(product, nullptr);
  void* workspace = nullptr;
  cudaMalloc(&workspace, product->workspace_bytes() + 1);
  EXPECT_EQ(product->run(nullptr, left, right, nullptr, result, workspace), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaMemcpy(d.data(), result, d.size() * sizeof(float), cudaMemcpyDeviceToHost);
  EXPECT_EQ(d, expected);
  for (void* memory : {left, right, result, workspace}) cudaFree(memory);
  EXPECT_EQ(fake_cuda::take_broken_rules(), std::vector<std::string>{});
}

// Logits, the gradients for activations and for weights, in rows that begin at whole packs.
TEST_F(OddExtents, AreRoundedUp) {
  const ProductShape columns{
      .rows = 1100, .columns = 61, .inner = 8, .transpose_b = true, .ld_d = 64, .bias = true};
  EXPECT_TRUE(check(columns));
  ProductShape turned = columns;  // weights as in MatMul
  turned.transpose_b = false;
  EXPECT_TRUE(check(turned));
  ProductShape inner{
      .rows = 1100, .columns = 8, .inner = 61, .ld_a = 64, .alpha = 2, .beta = 1, .bias = true};
  EXPECT_TRUE(check(inner));
  inner.transpose_b = true;
  EXPECT_TRUE(check(inner));
  ProductShape rows{
      .rows = 61, .columns = 8, .inner = 1100, .transpose_a = true, .ld_a = 64, .beta = 1};
  EXPECT_TRUE(check(rows));
  rows.beta = 0;
  rows.bias_grad = BiasGrad::kOfA;
  EXPECT_TRUE(check(rows));
  rows.bias_grad = BiasGrad::kOfB;
  EXPECT_TRUE(check(rows));
  const ProductShape other{.rows = 8,
                           .columns = 61,
                           .inner = 1100,
                           .transpose_a = true,
                           .ld_b = 64,
                           .bias_grad = BiasGrad::kOfB};
  EXPECT_TRUE(check(other));
}

// Copies would be most of the work, or the extent is not a row's.
TEST_F(OddExtents, AreLeftWhereThatWouldNotHelp) {
  EXPECT_FALSE(check({.rows = 1100, .columns = 61, .inner = 8, .transpose_b = true}));
  EXPECT_FALSE(check({.rows = 60, .columns = 61, .inner = 8, .transpose_b = true, .ld_d = 64}));
  EXPECT_FALSE(check({.rows = 61, .columns = 64, .inner = 64}));
  EXPECT_FALSE(check({.rows = 1100, .columns = 64, .inner = 64}));
}

// --- which algorithm ---

constexpr ProductShape kTried{.rows = 64, .columns = 64, .inner = kMinTried / (64 * 64)};

// Runs three candidates; the second gives other bits. Returns the runs of each.
std::array<int, 3> runs_of(const ProductShape& shape, bool may_vary, int& chosen) {
  std::array<int, 3> runs{};
  chosen = fastest_candidate(shape, 3, may_vary, 16, [&](int i, const ProductOperands& o) {
    ++runs[static_cast<size_t>(i)];
    return cudaMemsetAsync(o.d, i == 1 ? 7 : 3, 64 * 64 * sizeof(float), nullptr) == cudaSuccess;
  });
  EXPECT_EQ(fake_cuda::take_broken_rules(), std::vector<std::string>{});
  return runs;
}

TEST(ProductChoice, IsAmongThoseThatGiveTheBitsOfTheFirst) {
  int chosen = 0;
  const auto same = runs_of(kTried, false, chosen);
  EXPECT_GT(same[0], 1);
  EXPECT_EQ(same[1], 1);  // once for the bits, never for the time
  EXPECT_GT(same[2], 1);
  EXPECT_NE(chosen, 1);
  EXPECT_GT(runs_of(kTried, true, chosen)[1], 1);
}

TEST(ProductChoice, IsTheFirstWhereATrialCostsMoreThanItGives) {
  ProductShape small = kTried;
  --small.inner;
  int chosen = 1;
  EXPECT_EQ(runs_of(small, false, chosen), (std::array<int, 3>{}));
  EXPECT_EQ(chosen, 0);
}

// A candidate that cannot be launched is passed over, even if it is the first.
TEST(ProductChoice, PassesOverWhatDoesNotRun) {
  const auto refuses = [](int i, const ProductOperands&) { return i == 2; };
  for (const bool may_vary : {true, false}) {
    EXPECT_EQ(fastest_candidate(kTried, 3, may_vary, 16, refuses), 2);
  }
}

}  // namespace
}  // namespace ofsdp::kernels::cuda
