// MaxPool's inner loops, for AVX-512, AVX2 and baseline x86-64. They know no window: the caller
// lists which source elements compete. Winners are tap numbers, kNoWinner (pool_shape.h) where
// there is none.
//
// Owns: nothing. Threads: any. Errors: none.
#pragma once

#include <cstdint>

namespace ofsdp::kernels::ops {

// A block is up to kBlock outputs that lie next to each other in y: channels of one position when
// channels last, positions of one row when plain.
constexpr int64_t kBlock = 64;
constexpr int kTapsAtOnce = 32;

struct Block {
  float best[kBlock];
  int32_t winner[kBlock];
};

struct Tap {
  const float* src;  // of output 0 of the block; output i reads src[i * step]
  int32_t number;
  int64_t begin, end;  // the outputs for which this tap lies inside x
};

struct TapList {
  Tap taps[kTapsAtOnce];
  int count = 0;
  int64_t step = 1;
};

void start_block(Block& block);  // best is -inf, no winners
void take_taps(const TapList& list,
               Block& block);   // the first of equal taps wins, NaN wins over all
void relu_block(Block& block);  // max(best, 0); no winner where that is 0
void narrow_winners(const int32_t* winner, uint8_t* dst, int64_t n);

// [Note: four taps] Windows of 2 x 2 without padding, the usual case, need no block: the four
// candidates of an output are compared in registers. Output i reads src[i * step + offset] for each
// offset.
struct FourTaps {
  int64_t offsets[4];
  int64_t step;
  bool relu;
};

// step is 1 or 2.
void four_taps(const float* src, const FourTaps& four, int64_t n, float* dst, uint8_t* winners);

}  // namespace ofsdp::kernels::ops
