#include "tests/support/products.h"

#include <array>
#include <functional>
#include <numeric>

#include "kernels/core/memory.h"
#include "kernels/cpu/stored_floats.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

using kernels::ops::MatrixProduct;
using Addend = MatrixProduct::Addend;

namespace {

// Numbers in a product's dtype, and the values that it holds.
struct Numbers {
  Numbers(DType dtype, int64_t count, uint32_t seed)
      : bytes(static_cast<size_t>(count) * dtype_size(dtype)), made(static_cast<size_t>(count)) {
    for (float& v : made) {
      seed = seed * 1664525u + 1013904223u;
      v = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1.0f;
    }
    if (dtype == DType::kFloat32) {
      std::memcpy(bytes.data(), made.data(), bytes.size());
    } else {
      kernels::narrow(made.data(), dtype, bytes.data(), count);
    }
    read_back(dtype);
  }

  void read_back(DType dtype) {
    if (dtype == DType::kFloat32) {
      std::memcpy(made.data(), bytes.data(), bytes.size());
    } else {
      kernels::widen(dtype, bytes.data(), made.data(), static_cast<int64_t>(made.size()));
    }
  }

  std::vector<double> wide() const { return {made.begin(), made.end()}; }
  TensorView view() { return {bytes.data(), {}}; }

  std::vector<std::byte> bytes;
  std::vector<float> made;
};

int64_t matrices(const std::vector<int64_t>& batch) {
  return std::accumulate(batch.begin(), batch.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

MatrixProduct sized(int64_t rows, int64_t inner, int64_t columns) {
  MatrixProduct p;
  p.rows = rows;
  p.inner = inner;
  p.columns = columns;
  return p;
}

void for_each_form(const MatrixProduct& product,
                   const std::function<void(const MatrixProduct&)>& visit) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const Addend addend : {Addend::kNone, Addend::kBias, Addend::kAccumulate}) {
        SCOPED_TRACE(::testing::Message()
                     << transpose_a << transpose_b << static_cast<int>(addend));
        MatrixProduct p = product;
        p.transpose_a = transpose_a;
        p.transpose_b = transpose_b;
        p.addend = addend;
        p.alpha = addend == Addend::kBias ? 1.0f : 0.5f;
        visit(p);
      }
    }
  }
}

void expect_near_definition(const MatrixProduct& p, kernels::Kernel& kernel, double tolerance) {
  Numbers a(p.dtype, matrices(p.batch_a) * p.rows * p.inner, 1);
  Numbers b(p.dtype, matrices(p.batch_b) * p.inner * p.columns, 2);
  Numbers bias(p.dtype, p.columns, 3);
  Numbers dst(p.dtype, matrices(p.batch()) * p.rows * p.columns, 4);
  std::vector<double> expected;
  kernels::ops::reference_product(p, a.wide(), b.wide(), expected);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (p.addend == Addend::kBias) expected[i] += bias.made[i % bias.made.size()];
    if (p.addend == Addend::kAccumulate) expected[i] += dst.made[i];
  }
  const std::array<TensorView, 3> inputs = {a.view(), b.view(), bias.view()};
  const TensorView output = dst.view();
  std::vector<std::byte> workspace(kernel.workspace_bytes());
  ASSERT_TRUE(kernel.run({inputs, {&output, 1}, workspace.data(), nullptr}).ok());
  dst.read_back(p.dtype);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(dst.made[i], expected[i], tolerance) << "element " << i;
  }
}

}  // namespace ofsdp
