// Augmentation of images: random resized crops, flips, mixup and cutmix.
//
// All draws depend on (seed, epoch, sample) alone: not on ranks, threads, batches or a resume. The
// crop is torchvision's RandomResizedCrop: ten tries at an area and a ratio, then the largest box
// of an allowed ratio in the middle. Mixup (Zhang et al., 2018) and cutmix (Yun et al., 2019) take
// a partner among all samples, with its own crop and flip in that epoch; with both, each sample
// takes one of them, with equal chances.
//
// Pure arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "runtime/data/data_spec.h"

namespace ofsdp::runtime {

// The source of a sample's draws in an epoch.
uint64_t row_key(uint64_t seed, int64_t epoch, int64_t sample);

struct PixelBox {
  int64_t x = 0, y = 0, width = 0, height = 0;
};

PixelBox random_crop(uint64_t key, int64_t width, int64_t height, const Augmentation& by);
bool flips(uint64_t key, const Augmentation& by);

// A row becomes `kept` times itself plus 1 - kept times the partner. With cutmix the partner's
// pixels replace `box`, and labels alone are weighted.
struct RowMix {
  int64_t partner = -1;  // -1: the row stays
  float kept = 1;
  PixelBox box = {};  // of cutmix; without width: mixup
};

RowMix draw_mix(uint64_t key, int64_t samples, int64_t width, int64_t height,
                const Augmentation& by);

}  // namespace ofsdp::runtime
