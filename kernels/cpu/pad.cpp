#include "kernels/cpu/pad.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/broadcast.h"

namespace ofsdp::kernels {
namespace {

// The place of position i of an endless axis in its n elements.
int64_t folded(int64_t i, int64_t n, PadMode mode) {
  if (i >= 0 && i < n) return i;
  if (mode == PadMode::kConstant) return -1;
  if (mode == PadMode::kEdge || n == 1) return std::clamp<int64_t>(i, 0, n - 1);
  const int64_t period = mode == PadMode::kWrap ? n : 2 * (n - 1);
  const int64_t at = ((i % period) + period) % period;
  return at < n ? at : period - at;
}

}  // namespace

std::vector<int64_t> pad_axis(int64_t n, int64_t before, int64_t after, PadMode mode) {
  const int64_t cropped = std::max<int64_t>(-before, 0);
  const int64_t left = n - cropped - std::max<int64_t>(-after, 0);
  std::vector<int64_t> map;
  for (int64_t i = -std::max<int64_t>(before, 0); i < left + std::max<int64_t>(after, 0); ++i) {
    const int64_t at = folded(i, left, mode);
    map.push_back(at < 0 ? -1 : at + cropped);
  }
  return map;
}

PadMap::Inverse PadMap::inverted(const std::vector<int64_t>& map, int64_t n) {
  std::vector<std::vector<int64_t>> places(static_cast<size_t>(n));
  for (size_t at = 0; at < map.size(); ++at) {
    places[static_cast<size_t>(map[at])].push_back(static_cast<int64_t>(at));
  }
  Inverse inverse{{0}, {}};
  for (const auto& list : places) {
    inverse.places.insert(inverse.places.end(), list.begin(), list.end());
    inverse.begins.push_back(static_cast<int64_t>(inverse.places.size()));
  }
  return inverse;
}

PadMap::PadMap(const Shape& src, const std::vector<int64_t>& before,
               const std::vector<int64_t>& after, PadMode mode) {
  std::vector<int64_t> from = src.axes(), to;
  if (from.empty()) from.push_back(1);  // a scalar is a row of one
  for (size_t axis = 0; axis < from.size(); ++axis) {
    const bool padded = axis < before.size();
    maps_.push_back(
        pad_axis(from[axis], padded ? before[axis] : 0, padded ? after[axis] : 0, mode));
    to.push_back(static_cast<int64_t>(maps_.back().size()));
    if (mode != PadMode::kConstant) inverses_.push_back(inverted(maps_.back(), from[axis]));
  }
  src_ = Shape(from);
  dst_ = Shape(to);
  const bool given = !before.empty();
  run_begin_ = given ? std::max<int64_t>(before.back(), 0) : 0;
  run_end_ = to.back() - (given ? std::max<int64_t>(after.back(), 0) : 0);
  run_from_ = given ? std::max<int64_t>(-before.back(), 0) : 0;
  run_end_ = std::max(run_end_, run_begin_);
}

template <typename T>
void PadMap::pad(const T* src, T value, T* dst) const {
  const int last = dst_.rank() - 1;
  const int64_t n = dst_[last];
  const std::vector<int64_t>& map = maps_.back();
  parallel_each(dst_.numel(0, last), kElementGrain / (n + 1) + 1, [&](int64_t row) {
    int64_t rest = row, at = 0, step = 1;
    for (int axis = last; axis-- > 0 && at >= 0;) {
      const int64_t i = maps_[static_cast<size_t>(axis)][static_cast<size_t>(rest % dst_[axis])];
      rest /= dst_[axis];
      at = i < 0 ? -1 : at + i * step;
      step *= src_[axis];
    }
    T* to = dst + row * n;
    if (at < 0) {
      std::fill_n(to, n, value);
      return;
    }
    const T* from = src + at * src_[last];
    auto put = [&](int64_t first, int64_t stop) {
      for (int64_t i = first; i < stop; ++i) {
        const int64_t j = map[static_cast<size_t>(i)];
        to[i] = j < 0 ? value : from[j];
      }
    };
    put(0, run_begin_);
    std::copy_n(from + run_from_, run_end_ - run_begin_, to + run_begin_);
    put(run_end_, n);
  });
}

template <typename T>
void PadMap::add_rows(size_t axis, int64_t row, const int64_t* index, const T* diff_dst,
                      T* to) const {
  if (axis + 1 < maps_.size()) {
    const Inverse& inverse = inverses_[axis];
    const auto i = static_cast<size_t>(index[axis]);
    for (int64_t k = inverse.begins[i]; k < inverse.begins[i + 1]; ++k) {
      const int64_t place = inverse.places[static_cast<size_t>(k)];
      add_rows(axis + 1, row * dst_[static_cast<int>(axis)] + place, index, diff_dst, to);
    }
    return;
  }
  const int64_t n = dst_[dst_.rank() - 1];
  const T* from = diff_dst + row * n;
  const std::vector<int64_t>& map = maps_.back();
  for (int64_t i = 0; i < run_begin_; ++i) to[map[static_cast<size_t>(i)]] += from[i];
  T* run = to + run_from_;
  for (int64_t i = run_begin_; i < run_end_; ++i) run[i - run_begin_] += from[i];
  for (int64_t i = run_end_; i < n; ++i) to[map[static_cast<size_t>(i)]] += from[i];
}

template <typename T>
void PadMap::pad_grad(const T* diff_dst, T* diff_src) const {
  const int last = src_.rank() - 1;
  parallel_each(src_.numel(0, last), kElementGrain / (dst_[last] + 1) + 1, [&](int64_t row) {
    std::array<int64_t, kMaxLoopAxes> index{};
    int64_t rest = row;
    for (int axis = last; axis-- > 0;) {
      index[static_cast<size_t>(axis)] = rest % src_[axis];
      rest /= src_[axis];
    }
    T* to = diff_src + row * src_[last];
    std::fill_n(to, src_[last], T{0});
    add_rows(0, 0, index.data(), diff_dst, to);
  });
}

template void PadMap::pad(const uint8_t*, uint8_t, uint8_t*) const;
template void PadMap::pad(const uint16_t*, uint16_t, uint16_t*) const;
template void PadMap::pad(const uint32_t*, uint32_t, uint32_t*) const;
template void PadMap::pad(const uint64_t*, uint64_t, uint64_t*) const;
template void PadMap::pad_grad(const float*, float*) const;
template void PadMap::pad_grad(const double*, double*) const;

}  // namespace ofsdp::kernels
