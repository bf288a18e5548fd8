#include "runtime/data/images/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/status.h"

namespace ofsdp::runtime {
namespace {

constexpr int kPrecision = 32 - 8 - 2;  // bits of a weight after the point

// An axis's filter: output i is the sum over inputs first[i] .. first[i] + count[i] - 1, with
// `most` weights a row.
struct Filter {
  int64_t most = 0;
  int32_t* first = nullptr;
  int32_t* count = nullptr;
  int32_t* weights = nullptr;
};

double scale_of(int64_t from, int64_t to) {
  return static_cast<double>(from) / static_cast<double>(to);
}

int64_t most_weights(int64_t from, int64_t to) {
  return static_cast<int64_t>(std::ceil(std::max(scale_of(from, to), 1.0))) * 2 + 1;
}

size_t filter_bytes(int64_t from, int64_t to) {
  const int64_t most = most_weights(from, to);
  return static_cast<size_t>(to * (most + 2)) * sizeof(int32_t);
}

size_t sums_bytes(int64_t from, int64_t to) {
  return static_cast<size_t>(most_weights(from, to)) * sizeof(double);
}

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

int32_t rounded_weight(double weight) {
  return static_cast<int32_t>(0.5 + weight * (1 << kPrecision));
}

// `sums`: most_weights doubles. Every operation is Pillow's, in its order.
Filter make_filter(int64_t from, int64_t to, double* sums, int32_t* memory) {
  Filter filter{most_weights(from, to), memory, memory + to, memory + 2 * to};
  const double scale = scale_of(from, to), support = std::max(scale, 1.0), step = 1.0 / support;
  for (int64_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const auto end = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5), from);
    double total = 0;
    for (int64_t j = first; j < end; ++j) {
      const double weight = triangle((static_cast<double>(j) - center + 0.5) * step);
      sums[j - first] = weight;
      total += weight;
    }
    for (int64_t j = 0; j < end - first; ++j) {
      const double weight = total != 0.0 ? sums[j] / total : sums[j];
      filter.weights[i * filter.most + j] = rounded_weight(weight);
    }
    filter.first[i] = static_cast<int32_t>(first);
    filter.count[i] = static_cast<int32_t>(end - first);
  }
  return filter;
}

std::byte to_byte(int32_t sum) {
  return static_cast<std::byte>(std::clamp(sum >> kPrecision, 0, 255));
}

template <int kChannels>
void resize_row(const std::byte* from, int64_t width, const Filter& filter, std::byte* dst) {
  for (int64_t x = 0; x < width; ++x) {
    const int32_t* const weights = filter.weights + x * filter.most;
    const auto* pixel = reinterpret_cast<const uint8_t*>(from) + filter.first[x] * kChannels;
    int32_t sums[kChannels];
    std::fill_n(sums, kChannels, 1 << (kPrecision - 1));
    for (int32_t j = 0; j < filter.count[x]; ++j, pixel += kChannels) {
      for (int c = 0; c < kChannels; ++c) sums[c] += pixel[c] * weights[j];
    }
    for (int c = 0; c < kChannels; ++c) dst[x * kChannels + c] = to_byte(sums[c]);
  }
}

// A block of columns at a time, whose sums stay in registers or the first cache.
void resize_column(const std::byte* from, int64_t stride, int64_t bytes, const int32_t* weights,
                   int32_t count, std::byte* dst) {
  constexpr int64_t kBlock = 64;
  for (int64_t begin = 0; begin < bytes; begin += kBlock) {
    const int64_t width = std::min(kBlock, bytes - begin);
    int32_t sums[kBlock];
    std::fill_n(sums, kBlock, 1 << (kPrecision - 1));
    const auto* row = reinterpret_cast<const uint8_t*>(from) + begin;
    for (int32_t j = 0; j < count; ++j, row += stride) {
      for (int64_t x = 0; x < width; ++x) sums[x] += row[x] * weights[j];
    }
    for (int64_t x = 0; x < width; ++x) dst[begin + x] = to_byte(sums[x]);
  }
}

// Memory for one filter at a time.
struct Work {
  double* sums;
  int32_t* filter;
};

PixelView resize_rows(const PixelView& from, int channels, int64_t to_width, const Work& work,
                      std::byte* dst) {
  const Filter filter = make_filter(from.width, to_width, work.sums, work.filter);
  const int64_t stride = to_width * channels;
  for (int64_t y = 0; y < from.height; ++y) {
    const std::byte* const row = from.data + y * from.stride;
    channels == 1 ? resize_row<1>(row, to_width, filter, dst + y * stride)
                  : resize_row<3>(row, to_width, filter, dst + y * stride);
  }
  return {dst, to_width, from.height, stride};
}

PixelView resize_columns(const PixelView& from, int channels, int64_t to_height, const Work& work,
                         std::byte* dst) {
  const Filter filter = make_filter(from.height, to_height, work.sums, work.filter);
  const int64_t bytes = from.width * channels;
  for (int64_t y = 0; y < to_height; ++y) {
    resize_column(from.data + filter.first[y] * from.stride, from.stride, bytes,
                  filter.weights + y * filter.most, filter.count[y], dst + y * bytes);
  }
  return {dst, from.width, to_height, bytes};
}

// Pillow's choice since version 13, where columns cost half as much as rows. Each pass rounds, so
// bytes depend on it.
bool columns_first(const PixelView& from, int64_t to_width, int64_t to_height) {
  const int64_t fewer = from.height - to_height;
  return fewer > 0 && fewer > 2 * (from.width - to_width);
}

void copy_rows(const PixelView& from, int channels, std::byte* dst) {
  const auto bytes = static_cast<size_t>(from.width * channels);
  for (int64_t y = 0; y < from.height; ++y, dst += bytes) {
    std::memcpy(dst, from.data + y * from.stride, bytes);
  }
}

}  // namespace

size_t resize_bytes(int64_t width, int64_t height, int64_t to_width, int64_t to_height,
                    int channels) {
  const int64_t between = std::max(height * to_width, to_height * width) * channels;
  return std::max(sums_bytes(width, to_width), sums_bytes(height, to_height)) +
         std::max(filter_bytes(width, to_width), filter_bytes(height, to_height)) +
         static_cast<size_t>(between);
}

void resize_image(const PixelView& from, int channels, int64_t to_width, int64_t to_height,
                  std::byte* dst, std::span<std::byte> scratch) {
  OFSDP_CHECK(channels == 1 || channels == 3, "{} channels", channels);
  const size_t needed = resize_bytes(from.width, from.height, to_width, to_height, channels);
  OFSDP_CHECK(scratch.size() >= needed, "{} of {} bytes", scratch.size(), needed);
  const bool wide = from.width != to_width, high = from.height != to_height;
  if (!wide && !high) return copy_rows(from, channels, dst);
  std::byte* const filter = scratch.data() + std::max(sums_bytes(from.width, to_width),
                                                      sums_bytes(from.height, to_height));
  std::byte* const between =
      filter + std::max(filter_bytes(from.width, to_width), filter_bytes(from.height, to_height));
  const Work work{reinterpret_cast<double*>(scratch.data()), reinterpret_cast<int32_t*>(filter)};
  const bool both = wide && high;
  const bool down = both ? columns_first(from, to_width, to_height) : high;
  std::byte* const made = both ? between : dst;
  const PixelView half = down ? resize_columns(from, channels, to_height, work, made)
                              : resize_rows(from, channels, to_width, work, made);
  if (!both) return;
  down ? resize_rows(half, channels, to_width, work, dst)
       : resize_columns(half, channels, to_height, work, dst);
}

}  // namespace ofsdp::runtime
