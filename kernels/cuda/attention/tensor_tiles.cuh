// Tiles of rows of 16 bits in shared memory and a warp's products with them on tensor cores, for
// attention. The pieces of matrices lie across a warp as ptx/tensor_core.cuh says; 16 rows of
// float32 sums are `float c[columns / 8][4]`.
//
// The 16-byte chunks of a row are mixed by row, so that eight rows of one column of chunks lie in
// different banks. Columns past a row's width and rows past the last are zeros.
// Order of sums: columns (or rows) 16 by 16, rising; the order of 16 is the instruction's.
#pragma once

#include <tensor_core.cuh>

#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

template <int R, int W>
struct Tile {
  static constexpr int kRows = R, kWidth = W, kChunks = W / 8;
  Chunk chunks[R * kChunks];

  __device__ Chunk* at(int row, int chunk) {
    const int mix = W % 64 == 0 ? row % 8 : row / 2 % 4;
    return chunks + row * kChunks + (chunk ^ mix);
  }
};

// `count` rows in device memory. packs: addresses, stride and width are whole chunks.
template <typename T>
struct RowsOf {
  const T* base;
  int64_t stride;
  int count, width;
  bool packs;
};

// Up to eight elements, then zeros.
template <typename T>
__device__ inline Chunk gathered(const T* from, int count) {
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  Chunk made{};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) made.word[i / 2] |= uint32_t{bits[i]} << (i % 2 * 16);
  }
  return made;
}

// Rows first .. of `from`, by all threads of the block; there after wait_for_copies and a barrier.
template <int kThreads, typename T, int R, int W>
__device__ inline void load_tile(Tile<R, W>& tile, const RowsOf<T>& from, int first) {
  for (int i = static_cast<int>(threadIdx.x); i < R * tile.kChunks; i += kThreads) {
    const int row = i / tile.kChunks, chunk = i % tile.kChunks;
    const bool there = first + row < from.count && 8 * chunk < from.width;
    const T* at = there ? from.base + (first + row) * from.stride + 8 * chunk : from.base;
    if (from.packs) {
      copy_async(tile.at(row, chunk), at, there);
    } else {
      *tile.at(row, chunk) = gathered(at, there ? from.width - 8 * chunk : 0);
    }
  }
}

// c[m] += rows row + 16 m .. of `a` times the transposed first N rows of `b`.
template <typename T, int M, int N, int R, int S, int W>
__device__ inline void multiply_rows(float (&c)[M][N / 8][4], Tile<R, W>& a, int row,
                                     Tile<S, W>& b) {
  static_assert(N <= S && N % 16 == 0 && W % 16 == 0);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int k = 0; k < W / 16; ++k) {
    Chunk left[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      left[m] = load_matrices(a.at(row + 16 * m + lane % 16, 2 * k + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      const Chunk right =
          load_matrices(b.at(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        TensorCore<T>::multiply(c[m][2 * n], left[m], right.word[0], right.word[1]);
        TensorCore<T>::multiply(c[m][2 * n + 1], left[m], right.word[2], right.word[3]);
      }
    }
  }
}

// Sums of columns 16 k .. as the left factor of a product, rounded.
template <typename T, int K>
__device__ inline Chunk as_factor(const float (&c)[K][4], int k) {
  const auto &low = c[2 * k], &high = c[2 * k + 1];
  Chunk made;
  made.word[0] = TensorCore<T>::two(low[0], low[1]);
  made.word[1] = TensorCore<T>::two(low[2], low[3]);
  made.word[2] = TensorCore<T>::two(high[0], high[1]);
  made.word[3] = TensorCore<T>::two(high[2], high[3]);
  return made;
}

// c[m] += a[m], [16, N], rounded to T, times the first N rows of `b`.
template <typename T, int M, int N, int S, int W>
__device__ inline void multiply_sums(float (&c)[M][W / 8][4], const float (&a)[M][N][4],
                                     Tile<S, W>& b) {
  static_assert(8 * N <= S && N % 2 == 0);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int k = 0; k < N / 2; ++k) {
    Chunk left[M];
#pragma unroll
    for (int m = 0; m < M; ++m) left[m] = as_factor<T>(a[m], k);
#pragma unroll
    for (int n = 0; n < W / 16; ++n) {
      const Chunk right = load_turned_matrices(b.at(16 * k + lane % 16, 2 * n + lane / 16));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        TensorCore<T>::multiply(c[m][2 * n], left[m], right.word[0], right.word[1]);
        TensorCore<T>::multiply(c[m][2 * n + 1], left[m], right.word[2], right.word[3]);
      }
    }
  }
}

// Rows g and g + 8 from `to` on, as far as `count` says, each times its factor.
template <typename T, int N>
__device__ inline void store_sums(T* to, int64_t stride, int count, int width, bool packs,
                                  const float (&c)[N][4], const float (&factor)[2]) {
  const int g = static_cast<int>(threadIdx.x % kWarp) / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (g + 8 * r >= count) continue;
    T* row = to + (g + 8 * r) * stride;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int column = 8 * n + 2 * t;
      const float two[2] = {c[n][2 * r] * factor[r], c[n][2 * r + 1] * factor[r]};
      if (packs && column < width) store<2>(row + column, two);
      if (!packs && column < width) row[column] = Stored<T>::from(two[0]);
      if (!packs && column + 1 < width) row[column + 1] = Stored<T>::from(two[1]);
    }
  }
}

}  // namespace ofsdp::kernels::cuda
