// Every pointwise operator against the operator's reference in double, with broadcasting, in every
// dtype; Where, Cast.
#include "kernels/cuda/pointwise/pointwise.h"

#include <limits>

#include "kernels/core/op_def.h"
#include "tests/gpu/kernels/device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::kernels::cuda {
namespace pointwise_test {

using Doubles = std::vector<double>;
using Sizes = std::vector<int64_t>;

class CudaPointwise : public DeviceTest {};

struct Op {
  std::string ours, name;
  Attributes attributes;
  PointwiseNumbers numbers;
  double least = -3, most = 3;  // for operands
};

std::vector<Op> reals() {
  const Attributes tanh{{"approximate", std::string("tanh")}};
  const Attributes shrink{{"lambd", 0.75f}, {"bias", 0.25f}},
      hard{{"alpha", 0.25f}, {"beta", 0.375f}};
  const Attributes selu{{"alpha", 1.5f}, {"gamma", 1.25f}};
  auto alpha = [](float v) { return Attributes{{"alpha", v}}; };
  std::vector<Op> list;
  for (const char* name : {"Neg",   "Abs",  "Exp",   "Erf",  "Tanh",     "Sigmoid",  "Relu",
                           "Gelu",  "Sin",  "Cos",   "Atan", "Sinh",     "Cosh",     "Asinh",
                           "Floor", "Ceil", "Round", "Sign", "Softplus", "Softsign", "HardSwish",
                           "Mish",  "Add",  "Sub",   "Mul",  "Max",      "Min",      "PRelu"}) {
    list.push_back({name, name, {}, {}});
  }
  for (const char* name : {"Sqrt", "Log", "Reciprocal", "Div", "Pow"})
    list.push_back({name, name, {}, {}, 0.25, 3});
  for (const char* name : {"Asin", "Acos", "Atanh", "Tan"})
    list.push_back({name, name, {}, {}, -0.75, 0.75});
  list.push_back({"Acosh", "Acosh", {}, {}, 1.25, 3});
  list.push_back({"Mod", "Mod", {{"fmod", int64_t{1}}}, {1, 0}, 0.25, 3});
  for (const char* name : {"Abs", "Erf", "Tanh", "Sigmoid", "Relu", "Gelu", "Softplus", "Softsign",
                           "HardSwish", "Mish"}) {
    list.push_back({std::string(name) + "Grad", std::string("ofsdp.") + name + "Grad", {}, {}});
  }
  const std::vector<Op> with_numbers = {{"Swish", "", alpha(1.5f), {1.5, 0}},
                                        {"Elu", "", alpha(1.5f), {1.5, 0}},
                                        {"Celu", "", alpha(1.5f), {1.5, 0}},
                                        {"LeakyRelu", "", alpha(0.125f), {0.125, 0}},
                                        {"ThresholdedRelu", "", alpha(0.5f), {0.5, 0}},
                                        {"Selu", "", selu, {1.5, 1.25}},
                                        {"HardSigmoid", "", hard, {0.25, 0.375}},
                                        {"Shrink", "", shrink, {0.75, 0.25}}};
  for (Op op : with_numbers) {
    op.name = op.ours;
    list.push_back(op);
    op.ours += "Grad";
    op.name = "ofsdp." + op.ours;
    list.push_back(op);
  }
  list.push_back({"GeluTanh", "Gelu", tanh, {}});
  list.push_back({"GeluTanhGrad", "ofsdp.GeluGrad", tanh, {}});
  list.push_back({"BiasGelu", "com.microsoft.BiasGelu", {}, {}});
  list.push_back({"FastGelu", "com.microsoft.FastGelu", {}, {}});
  return list;
}

const OpDef& op_of(const Registry& registry, const std::string& name) {
  const std::string microsoft = "com.microsoft.";
  if (name.starts_with(microsoft))
    return *registry.find("com.microsoft", name.substr(microsoft.size()));
  return registry.get(name);
}

struct Shapes {
  Sizes a, b, y;
  int shift = 0;
};

std::vector<Shapes> shapes() {
  return {{{1}, {1}, {1}},
          {{31}, {31}, {31}},
          {{33}, {33}, {33}, 1},
          {{1024}, {1024}, {1024}},
          {{4097}, {1}, {4097}},
          {{16, 64}, {64}, {16, 64}},
          {{16, 64}, {16, 1}, {16, 64}},
          {{3, 5, 7}, {5, 1}, {3, 5, 7}},
          {{7}, {5, 7}, {5, 7}},
          {{2, 3, 8, 4}, {3, 1, 1}, {2, 3, 8, 4}},
          {{2, 1, 4}, {1, 3, 1}, {2, 3, 4}},
          {{0, 4}, {4}, {0, 4}}};
}

int64_t product(const Sizes& shape) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  return n;
}

Doubles between(int64_t n, uint64_t seed, double least, double most) {
  Doubles v = numbers(n, seed, 1);
  for (double& x : v) x = least + (x + 1) / 2 * (most - least);
  return v;
}

Doubles rounded(DType dtype, const Doubles& values) { return Tensor(dtype, values).values(); }

Doubles expected_of(const OpDef& def, const Attributes& attributes, DType in, DType out,
                    const Shapes& s, const Doubles& a, const Doubles& b, bool two) {
  std::vector<RefTensor> inputs = {{{in, Shape(s.a)}, a}};
  if (two) inputs.push_back({{in, Shape(s.b)}, b});
  return def.reference({attributes, inputs, {{out, Shape(two ? s.y : s.a)}}, 0, {}})[0].values;
}

void check(const Registry& registry, const Op& op, DType dtype, const Shapes& given, DType out) {
  const Pointwise id = pointwise_of(op.ours);
  ASSERT_NE(id, Pointwise::kUnknown);
  const bool two = pointwise_arity(id) == 2;
  Shapes s = given;
  if (!two) s.y = s.a;
  const bool gradient = op.ours.ends_with("Grad");
  if (gradient || op.ours == "BiasGelu" || op.ours == "FastGelu") s.a = s.y;
  if (gradient) s.b = s.y;
  Tensor a(dtype, between(product(s.a), 1, op.least, op.most), s.shift),
      b(dtype, between(product(s.b), 2, op.least, op.most), s.shift),
      y(out, Tensor::blank(product(s.y)), s.shift);
  const StridedIndex walk =
      merge_dense_axes(s.y, {broadcast_strides(s.a, s.y), broadcast_strides(two ? s.b : s.a, s.y)});
  same_twice({&y}, [&] {
    return pointwise({id, dtype, op.numbers, walk, a.data(), two ? b.data() : nullptr, y.data()},
                     nullptr);
  });
  const Doubles expected = expected_of(op_of(registry, op.name), op.attributes, dtype, out, s,
                                       a.values(), b.values(), two);
  expect_close(y.values(), expected, rounding(dtype), op.ours);
}

TEST_F(CudaPointwise, RealsAgreeWithTheOperators) {
  const Registry registry = make_registry();
  for (const Op& op : reals()) {
    for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      for (const Shapes& s : shapes()) {
        SCOPED_TRACE(op.ours + " " + std::string(dtype_name(dtype)) + " " + Shape(s.a).text() +
                     Shape(s.b).text());
        check(registry, op, dtype, s, dtype);
      }
    }
  }
}

TEST_F(CudaPointwise, IntegersAndComparisons) {
  const Registry registry = make_registry();
  for (DType dtype : {DType::kInt32, DType::kInt64, DType::kFloat32, DType::kBFloat16}) {
    for (const Shapes& s : shapes()) {
      for (const char* name : {"Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Sign"}) {
        if (dtype == DType::kInt32 || dtype == DType::kInt64)
          check(registry, {name, name, {}, {}, -9, 9}, dtype, s, dtype);
      }
      for (const char* name : {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}) {
        check(registry, {name, name, {}, {}, -3, 3}, dtype, s, DType::kBool);
      }
    }
  }
  for (const char* name : {"And", "Or", "Xor", "Not"}) {
    check(registry, {name, name, {}, {}, 0, 2}, DType::kBool, {{3, 5}, {5}, {3, 5}}, DType::kBool);
  }
}

TEST_F(CudaPointwise, NaNAndInfinity) {
  const double inf = INFINITY, nan = std::nan("");
  const Doubles x = {0.0, -0.0, inf, -inf, nan, 100, -100, 20.5, -20.5, 1e6, -1e6, 0.5};
  const auto n = static_cast<int64_t>(x.size());
  const Registry registry = make_registry();
  for (const char* name :
       {"Relu", "Gelu", "Sigmoid", "Tanh", "Softplus", "Erf", "Exp", "Sign", "Abs", "Mish"}) {
    Tensor a(DType::kFloat32, x), y(DType::kFloat32, Tensor::blank(n));
    EXPECT_CUDA(pointwise(pointwise_of(name), DType::kFloat32, a.data(), nullptr, y.data(), n, {},
                          nullptr));
    const Shapes s{{n}, {n}, {n}};
    expect_close(y.values(),
                 rounded(DType::kFloat32, expected_of(registry.get(name), {}, DType::kFloat32,
                                                      DType::kFloat32, s, x, x, false)),
                 1e-5, name);
  }
  Tensor a(DType::kFloat32, x), y(DType::kFloat32, Tensor::blank(n));
  EXPECT_CUDA(pointwise(Pointwise::kClip, DType::kFloat32, a.data(), nullptr, y.data(), n,
                        {-1, inf}, nullptr));
  EXPECT_EQ(y.values()[3], -1);
  EXPECT_EQ(y.values()[2], inf);
  EXPECT_TRUE(std::isnan(y.values()[4]));
}

TEST_F(CudaPointwise, Where) {
  for (DType dtype : {DType::kUInt8, DType::kBFloat16, DType::kFloat32, DType::kInt64}) {
    for (const Shapes& s : shapes()) {
      const int64_t n = product(s.y);
      Doubles flags;
      for (int64_t i = 0; i < n; ++i) flags.push_back(i * 7 % 3 == 0);
      Tensor condition(DType::kBool, flags), a(dtype, between(product(s.a), 1, 0, 100), s.shift),
          b(dtype, between(product(s.b), 2, 0, 100), s.shift), y(dtype, Tensor::blank(n), s.shift);
      const StridedIndex walk = merge_dense_axes(
          s.y, {dense_strides(s.y), broadcast_strides(s.a, s.y), broadcast_strides(s.b, s.y)});
      same_twice({&y}, [&] {
        return where(walk, dtype_size(dtype), condition.as<bool>(), a.data(), b.data(), y.data(),
                     nullptr);
      });
      const Registry registry = make_registry();
      const RefTensor c{{DType::kBool, Shape(s.y)}, flags}, ra{{dtype, Shape(s.a)}, a.values()},
          rb{{dtype, Shape(s.b)}, b.values()};
      EXPECT_EQ(y.values(), registry.get("Where")
                                .reference({{}, {c, ra, rb}, {{dtype, Shape(s.y)}}, 0, {}})[0]
                                .values);
    }
  }
}

TEST_F(CudaPointwise, CastOfEveryPair) {
  const DType all[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                       DType::kInt8,    DType::kInt16,   DType::kInt32,   DType::kInt64,
                       DType::kUInt8,   DType::kUInt16,  DType::kUInt32,  DType::kUInt64,
                       DType::kBool};
  const int64_t number[] = {1, 11, 10, 16, 3, 5, 6, 7, 2, 4, 12, 13, 9};
  const Registry registry = make_registry();
  for (DType from : all) {
    for (size_t t = 0; t < std::size(all); ++t) {
      for (int shift : {0, 1}) {
        Doubles values = between(37, 1, 0, 90);
        for (double& v : values) v = is_floating(from) ? v - 45 : std::floor(v);
        if (is_floating(all[t]) != is_floating(from)) {
          for (double& v : values) v = std::abs(v);  // unsigned types have no negative numbers
        }
        Tensor x(from, values, shift), y(all[t], Tensor::blank(37), shift);
        same_twice({&y}, [&] { return cast(from, x.data(), all[t], y.data(), 37, nullptr); });
        const Attributes to{{"to", number[t]}};
        const RefTensor in{{from, {37}}, x.values()};
        const auto made = registry.get("Cast").reference({to, {in}, {{all[t], {37}}}, 0, {}});
        EXPECT_EQ(y.values(), rounded(all[t], made[0].values))
            << dtype_name(from) << " to " << dtype_name(all[t]);
      }
    }
  }
  Tensor wild(DType::kFloat32, {1e20, -1e20, std::nan(""), -1.5}),
      y(DType::kInt32, Tensor::blank(4));
  EXPECT_CUDA(cast(DType::kFloat32, wild.data(), DType::kInt32, y.data(), 4, nullptr));
  EXPECT_EQ(y.values(), (Doubles{2147483647.0, -2147483648.0, 0, -1}));
}

TEST(CudaWalk, CollapsesWhatLiesBehindEachOther) {
  const StridedIndex dense = merge_dense_axes({2, 3, 4}, {{12, 4, 1}, {12, 4, 1}});
  EXPECT_EQ(dense.rank, 1);
  EXPECT_EQ(dense.shape[0], 24);
  EXPECT_EQ(pack_of(dense, 2, 8), 8);
  const StridedIndex row =
      merge_dense_axes({2, 3, 4}, {{12, 4, 1}, broadcast_strides({4}, {2, 3, 4})});
  EXPECT_EQ(row.rank, 2);
  EXPECT_EQ(row.shape[0], 6);
  EXPECT_EQ(row.strides[1][0], 0);
  EXPECT_EQ(pack_of(row, 2, 4), 4);
  EXPECT_EQ(pack_of(row, 2, 8), 1);
  EXPECT_EQ(merge_dense_axes({1, 1}, {{1, 1}}).rank, 0);
  EXPECT_EQ(merge_dense_axes({5, 0}, {{0, 1}}).numel, 0);
}

}  // namespace pointwise_test
}  // namespace ofsdp::kernels::cuda
