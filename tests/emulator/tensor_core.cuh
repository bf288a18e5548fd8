// kernels/cuda/attention/ptx/tensor_core.cuh (its comment defines each function) on the emulator's
// warps. Fragments have the layout of the PTX ISA. Copies arrive as late as allowed or, when
// threads run backwards, at once. So a kernel that reads too early, or overwrites data that is
// still read, gives other bits in one run. A product adds its 16 terms to c one by one in rising
// order; the hardware's order may differ.
#pragma once

#include "kernels/cuda/device/device.cuh"

namespace ofsdp::kernels::cuda {

struct alignas(16) Chunk {
  uint32_t word[4];
};

inline void copy_async(Chunk* to, const void* from, bool there) {
  OFSDP_EMULATOR_EXPECT(reinterpret_cast<uintptr_t>(to) % 16 == 0);
  OFSDP_EMULATOR_EXPECT(reinterpret_cast<uintptr_t>(from) % 16 == 0);
  emulator::copy_later(to, from, there ? 16 : 0);
}
inline void wait_for_copies() { emulator::finish_copies(); }

namespace emulated {

inline uint32_t element(const Chunk& row, int i) {
  return row.word[i / 2] >> (i % 2 * 16) & 0xffff;
}
template <typename T>
float number(uint32_t word, int i) {
  return to_float(T{static_cast<uint16_t>(word >> (i % 2 * 16))});
}

// Lane 8 m + r gives row r of matrix m, which is read as it comes.
template <typename F>
Chunk matrices(const Chunk* row, const F& word_of) {
  OFSDP_EMULATOR_EXPECT(reinterpret_cast<uintptr_t>(row) % 16 == 0);
  const Chunk mine = *row;
  const emulator::Slot* lanes =
      emulator::meet(&mine, sizeof(mine), emulator::kAllLanes, emulator::Place::current());
  Chunk made;
  for (int m = 0; m < 4; ++m) {
    made.word[m] = word_of([&](int r, int column) {
      return element(*reinterpret_cast<const Chunk*>(lanes[8 * m + r].bytes), column);
    });
  }
  return made;
}

}  // namespace emulated

inline Chunk load_matrices(const Chunk* row) {
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  return emulated::matrices(row,
                            [&](const auto& at) { return at(g, 2 * t) | at(g, 2 * t + 1) << 16; });
}
inline Chunk load_transposed_matrices(const Chunk* row) {
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  return emulated::matrices(row,
                            [&](const auto& at) { return at(2 * t, g) | at(2 * t + 1, g) << 16; });
}

#if defined(__GNUC__) && !defined(__clang__)
#define OFSDP_OF_HARDWARE __attribute__((optimize("O2"), no_sanitize("address", "undefined")))
#else
#define OFSDP_OF_HARDWARE
#endif

template <typename T>
struct TensorCore {
  static void multiply(float (&c)[4], const Chunk& a, uint32_t b0, uint32_t b1) {
    const uint32_t words[6] = {a.word[0], a.word[1], a.word[2], a.word[3], b0, b1};
    float sums[4] = {c[0], c[1], c[2], c[3]};
    add_products(sums, words);
    for (int i = 0; i < 4; ++i) c[i] = sums[i];
  }
  static uint32_t two(float first, float second) {
    return Stored<T>::from(first).bits | uint32_t{Stored<T>::from(second).bits} << 16;
  }

 private:
  // The hardware's part, which sees no memory of the kernel: optimized and not watched.
  OFSDP_OF_HARDWARE static void add_products(float (&c)[4], const uint32_t (&words)[6]) {
    float mine[12];  // once, not again for each lane that reads them
    for (int i = 0; i < 12; ++i) mine[i] = emulated::number<T>(words[i / 2], i);
    const emulator::Slot* lanes =
        emulator::meet(mine, sizeof(mine), emulator::kAllLanes, emulator::Place::current());
    const auto of = [&](int lane) { return reinterpret_cast<const float*>(lanes[lane].bytes); };
    const int g = emulator::lane() / 4, t = emulator::lane() % 4;
    for (int k = 0; k < 16; ++k) {
      const int from = k % 8 / 2, at = k / 8 * 4 + k % 2;  // the lane in a quad, and the element
      const float *row = of(4 * g + from) + at, low = row[0], high = row[2];
      for (int j = 0; j < 2; ++j) {
        const float b = of(4 * (2 * t + j) + from)[8 + k / 8 * 2 + k % 2];
        c[j] += low * b;
        c[2 + j] += high * b;
      }
    }
  }
};

}  // namespace ofsdp::kernels::cuda
