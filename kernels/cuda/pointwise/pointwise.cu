// A thread computes a 16-byte pack of y, or one element if packs do not fit. Operations that are
// frequent in transformers have kernels of their own; all others share a kernel with a uniform
// switch.
#include <type_traits>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/pointwise/pointwise_math.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr Pointwise kAny = Pointwise::kUnknown;

// Loads V adjacent elements, or broadcasts one to all V.
template <int V, typename T>
__device__ inline void load_steps(const T* from, int64_t step, Compute<T>* to) {
  if (V == 1 || step == 1) return load<V>(from, to);
  const Compute<T> one = to_float(*from);
  unrolled<V>([&](int k) { to[k] = one; });
}

template <typename T, int V>
struct Operands {
  Compute<T> a[V], b[V];

  __device__ void read(const PointwiseCall& c, int64_t i) {
    const T *from = static_cast<const T*>(c.a), *second = static_cast<const T*>(c.b);
    if (c.walk.dense) {
      load<V>(from + i, a);
      if (second != nullptr) load<V>(second + i, b);
      return;
    }
    int64_t at[2];
    places<2>(c.walk, i, at);
    const int last = c.walk.rank - 1;
    load_steps<V>(from + at[0], last < 0 ? 0 : c.walk.strides[0][last], a);
    if (second != nullptr) load_steps<V>(second + at[1], last < 0 ? 0 : c.walk.strides[1][last], b);
  }
};

// A thread per y pack. kOp = kAny reads the operation from the call.
template <typename T, int V, Pointwise kOp>
OFSDP_CUDA_KERNEL real_kernel(PointwiseCall c) {
  using C = Compute<T>;
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= c.walk.numel) return;
  const Pointwise op = kOp == kAny ? c.op : kOp;
  const C first = static_cast<C>(c.numbers.a), second = static_cast<C>(c.numbers.b);
  Operands<T, V> x;
  x.read(c, i);
  unrolled<V>([&](int k) {
    if constexpr (kIsNarrow<T> && kOp != kAny) {
      const float operand = c.b == nullptr ? x.a[k] : x.b[k];
      if (quick_of<kOp>(x.a[k], operand, first, x.a[k])) return;
    }
    x.a[k] = c.b == nullptr ? unary_of(op, x.a[k], first, second)
                            : binary_of(op, x.a[k], x.b[k], first, second);
  });
  store<V>(static_cast<T*>(c.y) + i, x.a);
}

// A thread per y element.
template <typename T>
OFSDP_CUDA_KERNEL integer_kernel(PointwiseCall c) {
  OFSDP_CUDA_ITEM(i, c.walk.numel);
  Operands<T, 1> x;
  x.b[0] = 0;
  x.read(c, i);
  if (x.b[0] == 0 && (c.op == Pointwise::kDiv || c.op == Pointwise::kMod)) note(c.fault, x.a[0], 0);
  static_cast<T*>(c.y)[i] = integer_of(c.op, x.a[0], x.b[0], c.numbers);
}

// A thread per y element.
template <typename T>
OFSDP_CUDA_KERNEL test_kernel(PointwiseCall c) {
  OFSDP_CUDA_ITEM(i, c.walk.numel);
  Operands<T, 1> x;
  x.read(c, i);
  static_cast<bool*>(c.y)[i] = test_of(c.op, x.a[0], c.b == nullptr ? x.a[0] : x.b[0], c.numbers);
}

template <typename T, int V>
auto real_kernel_of(Pointwise op) {
  switch (op) {
#define OFSDP_OWN_KERNEL(op) OFSDP_CASE(Pointwise::k##op, (real_kernel<T, V, Pointwise::k##op>));
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
  const int operands = c.b == nullptr ? 1 : 2;
  const bool packs = pack_of(c.walk, operands, V) == V && aligned16(0, 1, c.a, c.b, c.y);
  return launch_over_packs<V>(packs, c.walk.numel, stream, real_kernel_of<T, V>(c.op),
                              real_kernel<T, 1, kAny>, c);
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

cudaError_t test(const PointwiseCall& c, cudaStream_t stream) {
  auto run = [&]<typename T>(T) { return over(c.walk.numel, stream, test_kernel<T>, c); };
  const bool byte = c.dtype == DType::kBool || c.dtype == DType::kUInt8;
  return byte ? run(uint8_t{}) : with_number(c.dtype, run);
}

// --- Where ---

// A thread per V adjacent y elements.
template <typename T, int V>
OFSDP_CUDA_KERNEL where_kernel(StridedIndex walk, const bool* condition, const T* a, const T* b,
                               T* y) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= walk.numel) return;
  int64_t at[3], step[3] = {};
  places<3>(walk, i, at);
  for (int k = 0; k < 3 && walk.rank > 0; ++k) step[k] = walk.strides[k][walk.rank - 1];
  Pack<T, V> made;
  unrolled<V>([&](int k) {
    made.v[k] = condition[at[0] + k * step[0]] ? a[at[1] + k * step[1]] : b[at[2] + k * step[2]];
  });
  *reinterpret_cast<Pack<T, V>*>(y + i) = made;
}

template <typename T>
cudaError_t where_as(const StridedIndex& walk, const bool* condition, const void* a, const void* b,
                     void* y, cudaStream_t stream) {
  constexpr int V = 4 * sizeof(T) > 16 ? 2 : 4;
  const bool packs = pack_of(walk, 3, V) == V && aligned16(0, 1, y);
  return launch_over_packs<V>(packs, walk.numel, stream, where_kernel<T, V>, where_kernel<T, 1>,
                              walk, condition, a, b, y);
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

bool returns_bool(Pointwise op) {
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
      return (returns_bool(op) && op != Pointwise::kIsInf) || is_of_integers(op);
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
  if (returns_bool(c.op)) return test(c, stream);
  return with_number(c.dtype, [&]<typename T>(T) {
    if constexpr (std::is_integral_v<T>) {
      return over(c.walk.numel, stream, integer_kernel<T>, c);
    } else {
      return real_as<T>(c, stream);
    }
  });
}

cudaError_t pointwise(Pointwise op, DType dtype, const void* a, const void* b, void* y,
                      int64_t numel, PointwiseNumbers numbers, cudaStream_t stream) {
  return pointwise({op, dtype, numbers, merge_dense_axes({numel}, {{1}, {1}}), a, b, y}, stream);
}

cudaError_t where(const StridedIndex& walk, size_t size, const bool* condition, const void* a,
                  const void* b, void* y, cudaStream_t stream) {
  if (walk.rank < 0) return cudaErrorNotSupported;
  return with_whole(size,
                    [&]<typename T>(T) { return where_as<T>(walk, condition, a, b, y, stream); });
}

}  // namespace ofsdp::kernels::cuda
