// A thread takes one 16-byte pack of y, or one element where packs do not fit. The operations of transformers are kernels of
// their own; all others share one that chooses by a switch, which all threads take alike.
#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/pointwise_math.cuh"
#include "kernels/cuda/pointwise/walk.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr Pointwise kAny = Pointwise::kUnknown;

template <typename T, typename Y>
struct View {
  Pointwise op;
  PointwiseNumbers numbers;
  Walk walk;
  const T *a, *b;  // b null: one operand
  Y* y;
};

// V elements that lie side by side, or one for all of them.
template <int V, typename T>
__device__ inline void load_steps(const T* from, int64_t step, Compute<T>* to) {
  if (V == 1 || step == 1) return load<V>(from, to);
  const Compute<T> one = to_float(*from);
  unrolled<V>([&](int k) { to[k] = one; });
}

template <typename T, int V>
struct Operands {
  Compute<T> a[V], b[V];

  template <typename Y>
  __device__ void read(const View<T, Y>& v, int64_t i) {
    int64_t at[2];
    places<2>(v.walk, i, at);
    const int last = v.walk.rank - 1;
    load_steps<V>(v.a + at[0], last < 0 ? 0 : v.walk.strides[0][last], a);
    if (v.b != nullptr) load_steps<V>(v.b + at[1], last < 0 ? 0 : v.walk.strides[1][last], b);
  }
};

template <typename T, int V, Pointwise kOp>
OFSDP_CUDA_KERNEL real_kernel(View<T, T> v) {
  using C = Compute<T>;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= v.walk.numel) return;
  const Pointwise op = kOp == kAny ? v.op : kOp;
  const C first = static_cast<C>(v.numbers.a), second = static_cast<C>(v.numbers.b);
  Operands<T, V> x;
  x.read(v, i);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    x.a[k] = v.b == nullptr ? unary_of(op, x.a[k], first, second)
                            : binary_of(op, x.a[k], x.b[k], first, second);
  }
  store<V>(v.y + i, x.a);
}

template <typename T>
OFSDP_CUDA_KERNEL integer_kernel(View<T, T> v, Fault fault) {
  OFSDP_CUDA_ITEM(i, v.walk.numel);
  int64_t at[2];
  places<2>(v.walk, i, at);
  const T a = v.a[at[0]], b = v.b == nullptr ? T(0) : v.b[at[1]];
  if (b == 0 && (v.op == Pointwise::kDiv || v.op == Pointwise::kMod)) note(fault, a, 0);
  v.y[i] = integer_of(v.op, a, b, v.numbers);
}

// As it is, 16-bit floats as float.
template <typename T>
__device__ inline T to_compared(T v) {
  return v;
}
__device__ inline float to_compared(__half v) { return to_float(v); }
__device__ inline float to_compared(__nv_bfloat16 v) { return to_float(v); }

template <typename T>
OFSDP_CUDA_KERNEL test_kernel(View<T, bool> v) {
  OFSDP_CUDA_ITEM(i, v.walk.numel);
  int64_t at[2];
  places<2>(v.walk, i, at);
  const auto x = to_compared(v.a[at[0]]);
  v.y[i] = test_of(v.op, x, v.b == nullptr ? x : to_compared(v.b[at[1]]), v.numbers);
}

template <typename T, typename Y>
View<T, Y> view_of(const PointwiseCall& c) {
  return {c.op,
          c.numbers,
          c.walk,
          static_cast<const T*>(c.a),
          static_cast<const T*>(c.b),
          static_cast<Y*>(c.y)};
}

template <typename T, int V>
auto real_kernel_of(Pointwise op) {
  switch (op) {
#define OFSDP_OWN_KERNEL(op) \
  case Pointwise::k##op:     \
    return real_kernel<T, V, Pointwise::k##op>;
    OFSDP_OWN_KERNEL(Add)
    OFSDP_OWN_KERNEL(Sub)
    OFSDP_OWN_KERNEL(Mul)
    OFSDP_OWN_KERNEL(Div)
    OFSDP_OWN_KERNEL(Relu)
    OFSDP_OWN_KERNEL(ReluGrad)
    OFSDP_OWN_KERNEL(Gelu)
    OFSDP_OWN_KERNEL(GeluGrad)
    OFSDP_OWN_KERNEL(GeluTanh)
    OFSDP_OWN_KERNEL(GeluTanhGrad)
    OFSDP_OWN_KERNEL(Swish)
    OFSDP_OWN_KERNEL(SwishGrad)
    OFSDP_OWN_KERNEL(Tanh)
    OFSDP_OWN_KERNEL(Sigmoid)
#undef OFSDP_OWN_KERNEL
    default:
      return real_kernel<T, V, kAny>;
  }
}

template <typename T>
cudaError_t real_as(const PointwiseCall& c, cudaStream_t stream) {
  constexpr int V = kPack<T>;
  const View<T, T> view = view_of<T, T>(c);
  const int operands = c.b == nullptr ? 1 : 2;
  const bool packs = pack_of(c.walk, operands, V) == V && aligned16(0, 1, c.a, c.b, c.y);
  if (!packs) {
    return over(c.walk.numel, stream, real_kernel<T, 1, kAny>, view);
  }
  return over(blocks_for(c.walk.numel, V), stream, real_kernel_of<T, V>(c.op), view);
}

bool is_of_integers_alone(Pointwise op) {
  switch (op) {
#define INTEGER(name, operands) OFSDP_CASE(Pointwise::k##name, true);
#include "kernels/cuda/pointwise/operations.inc"
    default:
      return false;
  }
}

bool is_of_integers(Pointwise op) {
  if (is_of_integers_alone(op)) return true;
  constexpr Pointwise kKnown[] = {
      Pointwise::kNeg,      Pointwise::kAbs, Pointwise::kSign, Pointwise::kRelu, Pointwise::kAdd,
      Pointwise::kSub,      Pointwise::kMul, Pointwise::kDiv,  Pointwise::kMax,  Pointwise::kMin,
      Pointwise::kIdentity, Pointwise::kMod, Pointwise::kClip};
  return std::find(std::begin(kKnown), std::end(kKnown), op) != std::end(kKnown);
}

template <typename T>
cudaError_t integer_as(const PointwiseCall& c, cudaStream_t stream) {
  return over(c.walk.numel, stream, integer_kernel<T>, view_of<T, T>(c), c.fault);
}

cudaError_t test(const PointwiseCall& c, cudaStream_t stream) {
  auto run = [&](auto t) {
    using T = decltype(t);
    return over(c.walk.numel, stream, test_kernel<T>, view_of<T, bool>(c));
  };
  const bool byte = c.dtype == DType::kBool || c.dtype == DType::kUInt8;
  return byte ? run(uint8_t{}) : with_number(c.dtype, run);
}

// --- where ---

template <typename T, int V>
OFSDP_CUDA_KERNEL where_kernel(Walk walk, const bool* condition, const T* a, const T* b, T* y) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= walk.numel) return;
  int64_t at[3], step[3] = {};
  places<3>(walk, i, at);
  for (int k = 0; k < 3 && walk.rank > 0; ++k) step[k] = walk.strides[k][walk.rank - 1];
  Pack<T, V> made;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    made.v[k] = condition[at[0] + k * step[0]] ? a[at[1] + k * step[1]] : b[at[2] + k * step[2]];
  }
  *reinterpret_cast<Pack<T, V>*>(y + i) = made;
}

template <typename T>
cudaError_t where_as(const Walk& walk, const bool* condition, const void* a, const void* b, void* y,
                     cudaStream_t stream) {
  constexpr int V = 4 * sizeof(T) > 16 ? 2 : 4;
  const bool packs = pack_of(walk, 3, V) == V && aligned16(0, 1, y);
  const T *from_a = static_cast<const T*>(a), *from_b = static_cast<const T*>(b);
  return packs ? over(blocks_for(walk.numel, V), stream, where_kernel<T, V>, walk, condition,
                      from_a, from_b, y)
               : over(walk.numel, stream, where_kernel<T, 1>, walk, condition, from_a, from_b, y);
}

}  // namespace

Pointwise pointwise_of(std::string_view name) {
#define OPERATION(op, operands) \
  if (name == #op) return Pointwise::k##op;
#include "kernels/cuda/pointwise/operations.inc"
  return Pointwise::kUnknown;
}

int pointwise_arity(Pointwise op) {
  switch (op) {
#define OPERATION(name, operands) OFSDP_CASE(Pointwise::k##name, operands);
#include "kernels/cuda/pointwise/operations.inc"
    default:
      return 0;
  }
}

bool gives_bool(Pointwise op) {
  switch (op) {
#define PREDICATE(name, operands) OFSDP_CASE(Pointwise::k##name, true);
#include "kernels/cuda/pointwise/operations.inc"
    default:
      return false;
  }
}

bool has_kernel(Pointwise op, DType dtype) {
  const bool logical = op == Pointwise::kEqual || op == Pointwise::kAnd || op == Pointwise::kOr ||
                       op == Pointwise::kXor || op == Pointwise::kNot;
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return op != Pointwise::kUnknown && !is_of_integers_alone(op);
    case DType::kInt32:
    case DType::kInt64:
      return (gives_bool(op) && op != Pointwise::kIsInf) || is_of_integers(op);
      OFSDP_CASE(DType::kBool, logical);
    default:
      return false;
  }
}

cudaError_t pointwise(const PointwiseCall& c, cudaStream_t stream) {
  if (c.walk.rank < 0 || (c.b != nullptr) != (pointwise_arity(c.op) == 2) ||
      !has_kernel(c.op, c.dtype)) {
    return cudaErrorNotSupported;
  }
  if (gives_bool(c.op)) return test(c, stream);
  return with_number(c.dtype, [&](auto t) {
    using T = decltype(t);
    if constexpr (std::is_integral_v<T>) {
      return integer_as<T>(c, stream);
    } else {
      return real_as<T>(c, stream);
    }
  });
}

cudaError_t pointwise(Pointwise op, DType dtype, const void* a, const void* b, void* y,
                      int64_t numel, PointwiseNumbers numbers, cudaStream_t stream) {
  return pointwise({op, dtype, numbers, collapsed({numel}, {{1}, {1}}), a, b, y}, stream);
}

cudaError_t where(const Walk& walk, size_t size, const bool* condition, const void* a,
                  const void* b, void* y, cudaStream_t stream) {
  if (walk.rank < 0) return cudaErrorNotSupported;
  return with_whole(
      size, [&](auto t) { return where_as<decltype(t)>(walk, condition, a, b, y, stream); });
}

}  // namespace ofsdp::kernels::cuda
