#include "runtime/data/augment.h"

#include <algorithm>
#include <cmath>

#include "runtime/data/sampler.h"

namespace ofsdp::runtime {
namespace {

// Each use of a key has draws of its own.
enum class Draw : uint64_t { kCrop = 1, kFlip, kMix };

class Draws {
 public:
  Draws(uint64_t key, Draw use) : key_(mix_bits(key, static_cast<uint64_t>(use))) {}

  double uniform() { return static_cast<double>(mix_bits(key_, next_++) >> 11) * 0x1p-53; }
  double between(double low, double high) { return low + (high - low) * uniform(); }
  int64_t below(int64_t count) {
    return std::min(static_cast<int64_t>(uniform() * static_cast<double>(count)), count - 1);
  }
  // Beta(alpha, alpha), by the method of Joehnk.
  double beta(double alpha) {
    while (true) {
      const double x = std::pow(uniform(), 1 / alpha), y = std::pow(uniform(), 1 / alpha);
      if (x + y <= 1 && x + y > 0) return x / (x + y);
    }
  }

 private:
  uint64_t key_, next_ = 0;
};

// The largest box of an allowed ratio, in the middle.
PixelBox middle_crop(int64_t width, int64_t height, const Augmentation& by) {
  const auto wide = static_cast<double>(width), high = static_cast<double>(height);
  PixelBox box{0, 0, width, height};
  if (wide / high < by.crop_ratio[0]) {
    box.height = std::min(height, std::lround(wide / by.crop_ratio[0]));
  } else if (wide / high > by.crop_ratio[1]) {
    box.width = std::min(width, std::lround(high * by.crop_ratio[1]));
  }
  box.width = std::max<int64_t>(1, box.width);
  box.height = std::max<int64_t>(1, box.height);
  box.x = (width - box.width) / 2;
  box.y = (height - box.height) / 2;
  return box;
}

// A box with `part` of the pixels around a drawn middle, cut at the edges.
PixelBox cutmix_box(Draws& draws, int64_t width, int64_t height, double part) {
  const double side = std::sqrt(part);
  const auto half_width = static_cast<int64_t>(static_cast<double>(width) * side / 2);
  const auto half_height = static_cast<int64_t>(static_cast<double>(height) * side / 2);
  const int64_t x = draws.below(width), y = draws.below(height);
  PixelBox box{std::max<int64_t>(0, x - half_width), std::max<int64_t>(0, y - half_height), 0, 0};
  box.width = std::min(width, x + half_width) - box.x;
  box.height = std::min(height, y + half_height) - box.y;
  return box;
}

}  // namespace

uint64_t row_key(uint64_t seed, int64_t epoch, int64_t sample) {
  constexpr uint64_t kStream = 0x696d61676573;  // apart from other draws of the seed
  const uint64_t key = mix_bits(mix_bits(seed, kStream), static_cast<uint64_t>(epoch));
  return mix_bits(key, static_cast<uint64_t>(sample));
}

PixelBox random_crop(uint64_t key, int64_t width, int64_t height, const Augmentation& by) {
  constexpr int kTries = 10;
  Draws draws(key, Draw::kCrop);
  const auto area = static_cast<double>(width * height);
  const double low = std::log(by.crop_ratio[0]), high = std::log(by.crop_ratio[1]);
  for (int i = 0; i < kTries; ++i) {
    const double part = area * draws.between((*by.crop)[0], (*by.crop)[1]);
    const double ratio = std::exp(draws.between(low, high));
    const int64_t w = std::lround(std::sqrt(part * ratio)),
                  h = std::lround(std::sqrt(part / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const int64_t y = draws.below(height - h + 1), x = draws.below(width - w + 1);
    return {x, y, w, h};
  }
  return middle_crop(width, height, by);
}

bool flips(uint64_t key, const Augmentation& by) {
  return by.flip > 0 && Draws(key, Draw::kFlip).uniform() < by.flip;
}

RowMix draw_mix(uint64_t key, int64_t samples, int64_t width, int64_t height,
                const Augmentation& by) {
  Draws draws(key, Draw::kMix);
  RowMix mix;
  if (!by.mixes()) return mix;
  mix.partner = draws.below(samples);
  const bool second = draws.uniform() < 0.5;
  const bool cut = by.cutmix > 0 && (by.mixup == 0 || second);
  mix.kept = static_cast<float>(draws.beta(cut ? by.cutmix : by.mixup));
  if (!cut) return mix;
  mix.box = cutmix_box(draws, width, height, 1 - static_cast<double>(mix.kept));
  const int64_t pasted = mix.box.width * mix.box.height, all = width * height;
  if (pasted <= 0) return {};  // nothing of the partner shows
  mix.kept = static_cast<float>(static_cast<double>(all - pasted) / static_cast<double>(all));
  return mix;
}

}  // namespace ofsdp::runtime
