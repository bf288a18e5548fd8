// PTX instructions for tensor cores and asynchronous copies (PTX ISA, "Warp Level Matrix
// Instructions" and "Asynchronous copy"; compute capability 8.0). tests/emulator has the same
// functions in C++ in a file with the same name; the include path selects one.
//
// Fragment layout for lane l, with g = l / 4 and t = l % 4. A word holds two 16-bit neighbours:
//
//   A [16, 16]  word 0: row g, columns 2t, 2t + 1; word 1: row g + 8; word 2: row g, columns 2t +
//               8, 2t + 9; word 3: row g + 8, columns 2t + 8, 2t + 9
//   B [16, 8]   word 0: rows 2t, 2t + 1 of column g; word 1: rows 2t + 8, 2t + 9
//   C [16, 8]   0, 1: row g, columns 2t, 2t + 1; 2, 3: row g + 8
//
// REQUIRES: all 32 lanes call, except for copies.
#pragma once

#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

struct alignas(16) Chunk {  // eight 16-bit elements
  uint32_t word[4];
};

// Starts copying 16 bytes to shared memory; zeros if `there` is false, in which case `from` must
// still be a valid address.
__device__ inline void copy_async(Chunk* to, const void* from, bool there) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
               : "memory");
}

// Waits for this thread's copies; a barrier then makes them visible to the block.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ldmatrix: four 8 x 8 matrices. Lane l passes the address of row l % 8 in matrix l / 8. Word i
// receives row g, columns 2t and 2t + 1 of matrix i.
__device__ inline Chunk load_matrices(const Chunk* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  Chunk m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.word[0]), "=r"(m.word[1]), "=r"(m.word[2]), "=r"(m.word[3])
               : "r"(at)
               : "memory");
  return m;
}

// The same, transposed: word i receives column g, rows 2t and 2t + 1 of matrix i.
__device__ inline Chunk load_transposed_matrices(const Chunk* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  Chunk m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.word[0]), "=r"(m.word[1]), "=r"(m.word[2]), "=r"(m.word[3])
               : "r"(at)
               : "memory");
  return m;
}

template <typename T>
struct TensorCore;

template <>
struct TensorCore<__nv_bfloat16> {
  // c += a b. Exact products, float32 sums.
  static __device__ inline void multiply(float (&c)[4], const Chunk& a, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  }
  // Packs two values, rounded to nearest even.
  static __device__ inline uint32_t two(float first, float second) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
  }
};

template <>
struct TensorCore<__half> {
  static __device__ inline void multiply(float (&c)[4], const Chunk& a, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  }
  static __device__ inline uint32_t two(float first, float second) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
  }
};

}  // namespace ofsdp::kernels::cuda
