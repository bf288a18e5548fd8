// Masks for cuDNN (attention.h). One block per sample finds lengths, one warp per row of scores
// copies addends, one warp per key stores zeros.
#include <type_traits>

#include "kernels/core/planned_operands.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_score.cuh"
#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int kRowsOfBlock = kThreads / kWarp;

__device__ inline int64_t mask_place(const AttentionParams& e, int64_t b, int64_t h, int64_t query,
                                     int64_t key) {
  return b * e.mask_strides[0] + h * e.mask_strides[1] + query * e.mask_strides[2] +
         key * e.mask_strides[3];
}

// 1: the key is kept, 0: it is hidden, -1: the mask adds another number.
template <typename T>
__device__ inline int kept(const AttentionParams& e, int64_t at) {
  if (e.mask_kind == MaskKind::kBool) return static_cast<const bool*>(e.mask)[at] ? 1 : 0;
  const float m = to_float(static_cast<const T*>(e.mask)[at]);
  if (m == 0) return 1;
  return m <= static_cast<float>(kHiddenScore) ? 0 : -1;
}

// A sample's kept keys in the mask: their count, the key after the last, and the other numbers.
struct KeptKeys {
  int count = 0, end = 0, others = 0;
};

template <typename T>
__device__ inline KeptKeys kept_keys(const AttentionParams& e, int64_t b) {
  KeptKeys mine;
  for (int64_t key = threadIdx.x; key < e.mask_keys; key += kThreads) {
    const int is = kept<T>(e, mask_place(e, b, 0, 0, key));
    if (is < 0) ++mine.others;
    if (is > 0) ++mine.count;
    if (is > 0) mine.end = static_cast<int>(key) + 1;
  }
  __shared__ int spare[3][kRowsOfBlock];
  mine.count = group_reduce<kThreads>(mine.count, Add{}, spare[0]);
  mine.end = group_reduce<kThreads>(mine.end, Largest{}, spare[1]);
  mine.others = group_reduce<kThreads>(mine.others, Add{}, spare[2]);
  return mine;
}

template <typename T>
OFSDP_CUDA_KERNEL lengths_kernel(AttentionParams e, int64_t least, SampleLengths to) {
  const int64_t b = blockIdx.x;
  int64_t length = e.keys;
  bool apart = false;
  if (e.lengths != nullptr) {
    length = e.lengths[b];
    apart = length < 0 || length > e.keys;
    if (apart && threadIdx.x == 0) note(e.fault, length, e.keys);
  } else {
    const KeptKeys k = kept_keys<T>(e, b);
    length = k.end;
    apart = k.count != k.end || k.others != 0;
  }
  if (threadIdx.x != 0) return;
  apart = apart || length < least;
  to.queries[b] = static_cast<int32_t>(e.queries);
  to.keys[b] = static_cast<int32_t>(apart ? e.keys : length);
  to.apart[b] = apart ? 1 : 0;
}

// Half of the dtype's lowest number: added to a score it stays finite.
template <typename T>
__device__ inline float least_addend() {
  return std::is_same_v<T, __half> ? -32752.0f : -1.7e38f;
}

template <typename T>
__device__ inline float addend(const AttentionParams& e, int64_t b, int64_t h, int64_t query,
                               int64_t key) {
  const float least = least_addend<T>();
  if (key >= e.mask_keys) return least;
  const int64_t at = mask_place(e, b, h, query, key);
  if (e.mask_kind == MaskKind::kBool) return static_cast<const bool*>(e.mask)[at] ? 0.0f : least;
  const float m = to_float(static_cast<const T*>(e.mask)[at]);
  return m < least ? least : m;
}

// One warp per sample, head of the bias, and query. The first warp of those that read the same row
// of the mask stores it.
template <typename T>
OFSDP_CUDA_KERNEL bias_kernel(AttentionParams e, MaskBias shape, T* bias, int32_t* apart) {
  const int64_t item = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kWarp;
  if (item >= e.batch * shape.heads * e.queries) return;
  const int64_t query = item % e.queries, h = item / e.queries % shape.heads;
  const int64_t b = item / e.queries / shape.heads;
  const bool stores = (b == 0 || shape.batch > 1) && (query == 0 || shape.rows > 1);
  T* const to = bias + ((b * shape.heads + h) * shape.rows + query) * shape.pitch;
  const Range range = key_range(e, b, query);
  int seen = 0;
  for (int64_t key = threadIdx.x % kWarp; key < shape.pitch; key += kWarp) {
    const float value = addend<T>(e, b, h, query, key);
    if (stores) to[key] = Stored<T>::from(value);
    if (key >= range.low && key < range.high && !(value <= least_addend<T>())) seen = 1;
  }
  seen = warp_reduce(seen, Largest{});
  if (threadIdx.x % kWarp == 0 && seen == 0) atomicMax(apart + b, 1);
}

constexpr int64_t kKeysOfBlock = 64;

// One block per sample, head and kKeysOfBlock keys, one warp per key at a time.
template <typename T>
OFSDP_CUDA_KERNEL zero_kernel(AttentionParams e, const int32_t* keys, T* dk, T* dv) {
  const int64_t tiles = (e.keys + kKeysOfBlock - 1) / kKeysOfBlock, item = blockIdx.x / tiles;
  const int64_t kv = item % e.kv_heads, b = item / e.kv_heads;
  const int64_t first = blockIdx.x % tiles * kKeysOfBlock;
  const int64_t end = min_index(first + kKeysOfBlock, e.keys);
  int64_t key = max_index(first, keys[b]) + threadIdx.x / kWarp;
  for (; key < end; key += kRowsOfBlock) {
    T* const k = dk + b * e.k.batch + kv * e.k.head + key * e.k.row;
    T* const v = dv + b * e.v.batch + kv * e.v.head + key * e.v.row;
    for (int64_t i = threadIdx.x % kWarp; i < e.width; i += kWarp) k[i] = Stored<T>::from(0.0f);
    for (int64_t i = threadIdx.x % kWarp; i < e.v_width; i += kWarp) v[i] = Stored<T>::from(0.0f);
  }
}

// cuDNN takes no other types.
template <typename F>
cudaError_t with_16_bits(DType dtype, const F& f) {
  if (!is_16_bit_float(dtype)) return cudaErrorNotSupported;
  return dtype == DType::kFloat16 ? f(__half{}) : f(__nv_bfloat16{});
}

}  // namespace

cudaError_t sample_lengths(const AttentionParams& e, int64_t least, const SampleLengths& to,
                           cudaStream_t stream) {
  return with_16_bits(e.dtype, [&]<typename T>(T) {
    return launch_blocks(stream, e.batch, kThreads, lengths_kernel<T>, e, least, to);
  });
}

MaskBias mask_bias_shape(const AttentionParams& e) {
  constexpr int64_t kPack = 8;  // rows begin at multiples of 16 bytes
  return {e.mask_strides[0] == 0 ? 1 : e.batch, e.mask_strides[1] == 0 ? 1 : e.heads,
          e.mask_strides[2] == 0 ? 1 : e.queries, (e.keys + kPack - 1) / kPack * kPack};
}

cudaError_t mask_bias(const AttentionParams& e, void* bias, int32_t* apart, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(e.batch) * sizeof(int32_t);
  OFSDP_CUDA_TRY(cudaMemsetAsync(apart, 0, bytes, stream));
  return with_16_bits(e.dtype, [&]<typename T>(T) {
    const MaskBias shape = mask_bias_shape(e);
    const int64_t blocks = blocks_for(e.batch * shape.heads * e.queries, kRowsOfBlock);
    return launch_blocks(stream, blocks, kThreads, bias_kernel<T>, e, shape, static_cast<T*>(bias),
                         apart);
  });
}

cudaError_t zero_hidden_keys(const AttentionParams& e, const int32_t* keys, void* dk, void* dv,
                             cudaStream_t stream) {
  return with_16_bits(e.dtype, [&]<typename T>(T) {
    const int64_t blocks = e.batch * e.kv_heads * blocks_for(e.keys, kKeysOfBlock);
    return launch_blocks(stream, blocks, kThreads, zero_kernel<T>, e, keys, static_cast<T*>(dk),
                         static_cast<T*>(dv));
  });
}

}  // namespace ofsdp::kernels::cuda
