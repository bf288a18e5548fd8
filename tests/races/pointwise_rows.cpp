// Pointwise operators, chains, casts, dropout.
#include "kernels/cuda/pointwise/chain.h"
#include "kernels/cuda/pointwise/pointwise.h"
#include "kernels/cuda/random/random.h"
#include "tests/races/table.h"

namespace ofsdp::races {
namespace {

using namespace kernels::cuda;

constexpr int64_t kOuter = 6, kInner = 200, kAll = kOuter * kInner;

// y over the first operand; the second one has the same shape, or is a row.
void add_operator(Table& table, Pointwise op, DType dtype, const std::string& name, bool row) {
  const int operands = pointwise_arity(op);
  if (row && operands == 1) return;
  table.row(named("pointwise", name, dtype, row ? "of a row" : "of all"), [=](Buffers& m) {
    PointwiseCall c;
    c.op = op;
    c.dtype = dtype;
    c.numbers = {0.5, 1};
    const std::vector<int64_t> dense{kInner, 1}, other{row ? 0 : kInner, 1};
    c.walk = operands == 1 ? merge_dense_axes({kOuter, kInner}, {dense})
                           : merge_dense_axes({kOuter, kInner}, {dense, other});
    void* const a = m.floats(dtype, kAll);
    c.a = a;
    c.b = operands == 1 ? nullptr : m.floats(dtype, kAll);
    c.y = returns_bool(op) ? m.zeros(kAll) : a;
    return pointwise(c, nullptr);
  });
}

void add_operators(Table& table, DType dtype) {
  // Some with a separate kernel, and one for each other kind.
  std::vector<std::string> names{"Add", "Gelu", "GeluGrad", "Relu", "ReluGrad", "Sqrt", "Less"};
  if (table.all()) {
    names.clear();
#define OPERATION(name, operands) names.emplace_back(#name);
#include "kernels/cuda/pointwise/operations.inc"
  }
  for (const std::string& name : names) {
    const Pointwise op = pointwise_of(name);
    if (!has_kernel(op, dtype)) continue;
    add_operator(table, op, dtype, name, false);
    add_operator(table, op, dtype, name, true);
  }
}

void add_whole_numbers(Table& table) {
  table.row("pointwise Add int64", [](Buffers& m) {
    return pointwise(Pointwise::kAdd, DType::kInt64, m.whole(kAll, 9), m.whole(kAll, 9),
                     m.whole(kAll, 9), kAll, {}, nullptr);
  });
  for (const size_t size : table.some<size_t>({4, 2, 8})) {
    table.row(named("where", size), [=](Buffers& m) {
      const std::vector<int64_t> dense{kInner, 1};
      void* const a = m.zeros(kAll * size);
      return where(merge_dense_axes({kOuter, kInner}, {dense, dense, {0, 1}}), size,
                   m.whole<bool>(kAll, 2), a, m.zeros(kInner * size), a, nullptr);
    });
  }
}

void add_chain(Table& table, DType dtype) {
  table.row(named("chain", dtype), [=](Buffers& m) {
    ChainProgram p;
    p.dtype = dtype;
    p.numel = kAll;
    p.inputs = 2;
    p.steps = 3;
    p.results = 2;
    p.periods[0] = kAll;
    p.periods[1] = kInner;
    using kernels::ChainOp;
    const ChainOp ops[] = {ChainOp::kAdd, ChainOp::kGelu, ChainOp::kMul};
    const uint8_t a[] = {0, 2, 3}, b[] = {1, 0, 0};
    for (int i = 0; i < 3; ++i) {
      p.ops[i] = ops[i];
      p.a[i] = a[i];
      p.b[i] = b[i];
    }
    p.values[0] = 4;
    p.values[1] = 2;
    void* const x[] = {m.floats(dtype, kAll), m.floats(dtype, kInner)};
    void* const y[] = {x[0], m.floats(dtype, kAll)};
    return chain(p, x, y, nullptr);
  });
}

void add_casts(Table& table) {
  const std::pair<DType, DType> pairs[] = {{DType::kFloat32, DType::kBFloat16},
                                           {DType::kBFloat16, DType::kFloat32},
                                           {DType::kInt64, DType::kFloat32},
                                           {DType::kFloat32, DType::kBool}};
  for (const auto& [from, to] : pairs) {
    table.row(named("cast", from, "to", to), [from = from, to = to](Buffers& m) {
      void* const x = m.zeros(kernels::dtype_size(from) * kAll);
      return cast(from, x, to, m.zeros(kernels::dtype_size(to) * kAll), kAll, nullptr);
    });
  }
}

// In place; `scales`: one for all, or one a row.
void add_fake_quantize(Table& table, DType dtype) {
  for (const int64_t scales : {int64_t{1}, kOuter}) {
    const int64_t inner = scales == 1 ? 4 * kInner : kInner, all = kOuter * inner;
    table.row(named("fake quantize", dtype, scales), [=](Buffers& m) {
      FakeQuantizeParams e;
      e.dtype = dtype;
      e.map = *kernels::ScaleMap::make({kOuter, inner}, {scales}, 0, 0);
      e.range = {-8, 7};
      void* const x = m.floats(dtype, all);
      void* const dy = m.floats(dtype, all);
      const FakeQuantizeOperands o{dy, x, m.floats(dtype, scales), m.floats(dtype, scales)};
      void* const scratch = m.zeros(fake_quantize_scale_grad_scratch(e));
      if (const auto error =
              fake_quantize_scale_grad(e, o, m.floats(dtype, scales), scratch, nullptr)) {
        return error;
      }
      if (const auto error = fake_quantize_grad(e, o, dy, nullptr)) return error;
      return fake_quantize(e, o, x, nullptr);
    });
  }
}

void add_dropout(Table& table, DType dtype) {
  table.row(named("dropout", dtype), [=](Buffers& m) {
    DropoutCall c;
    c.dtype = dtype;
    c.samples = kOuter;
    c.elements = kInner;
    c.random = m.blank<RandomInput>(1);
    c.sample_index = m.whole(kOuter, 100);
    void* const x = m.floats(dtype, kAll);
    c.x = c.y = x;
    c.mask = m.blank<bool>(kAll);
    if (const cudaError_t error = dropout(c, nullptr)) return error;
    return dropout_grad(dtype, x, c.mask, m.floats(dtype, kAll), kAll, 0.5, nullptr);
  });
}

}  // namespace

void add_pointwise_rows(Table& table) {
  for (const DType dtype : table.floats()) {
    add_operators(table, dtype);
    add_chain(table, dtype);
    add_fake_quantize(table, dtype);
    add_dropout(table, dtype);
  }
  add_whole_numbers(table);
  add_casts(table);
  table.row("random normal", [](Buffers& m) {
    RandomCall c;
    c.y = m.floats(kAll);
    c.numel = kAll;
    c.sample_size = kInner;
    c.random = m.blank<RandomInput>(1);
    return draw_random(c, nullptr);
  });
}

}  // namespace ofsdp::races
