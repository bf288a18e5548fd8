#include "runtime/data/row_lengths.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/data/dataset.h"
#include "runtime/data/sampler.h"

namespace ofsdp::runtime {
namespace {

// Few rows have small windows, so that epochs still mix them: at least four windows if each has
// 256 rows. Larger ones would have longer stretches of short or of long rows.
constexpr int64_t kLeastWindow = 256, kMostWindow = 1024;

int64_t window_of(int64_t samples) {
  const auto quarter = static_cast<uint64_t>(samples / 4);
  return std::clamp<int64_t>(static_cast<int64_t>(std::bit_floor(quarter)), kLeastWindow,
                             kMostWindow);
}

constexpr uint64_t kTreeStream = 0x6275636b6574;  // apart from the streams of epochs
constexpr int kPlaceBits = 32;

int64_t integer_at(DType dtype, const std::byte* element) {
  return dtype == DType::kInt64 ? *reinterpret_cast<const int64_t*>(element)
                                : *reinterpret_cast<const int32_t*>(element);
}

}  // namespace

LengthOrder::LengthOrder(std::vector<int32_t> lengths, bool shuffle, uint64_t seed)
    : lengths_(std::move(lengths)),
      shuffle_(shuffle),
      seed_(seed),
      window_(window_of(std::ssize(lengths_))) {
  OFSDP_CHECK(!lengths_.empty(), "no rows");
  for (Window& window : windows_) {
    window.sorted.reserve(static_cast<size_t>(window_));
    window.samples.reserve(static_cast<size_t>(window_));
  }
}

int64_t LengthOrder::at(int64_t epoch, int64_t position) const {
  OFSDP_CHECK(position >= 0 && position < samples(), "position {}", position);
  const std::lock_guard lock(mutex_);
  const Window& found = window(epoch, position / window_);
  return found.samples[static_cast<size_t>(shuffled(found, position % window_))];
}

const LengthOrder::Window& LengthOrder::window(int64_t epoch, int64_t number) const {
  Window& place = windows_[static_cast<size_t>(number % 2)];
  if (place.epoch == epoch && place.number == number) return place;
  place.epoch = epoch;
  place.number = number;
  fill(place);
  return place;
}

void LengthOrder::fill(Window& window) const {
  const int64_t begin = window.number * window_, end = std::min(begin + window_, samples());
  const Permutation order =
      shuffle_ ? Permutation(samples(), seed_, static_cast<uint64_t>(window.epoch)) : Permutation();
  const auto sample_at = [&](int64_t i) { return shuffle_ ? order.at(i) : i; };
  window.sorted.clear();
  for (int64_t i = begin; i < end; ++i) {
    const auto length = static_cast<uint64_t>(this->length(sample_at(i)));
    window.sorted.push_back(length << kPlaceBits | static_cast<uint64_t>(i - begin));
  }
  std::ranges::sort(window.sorted);
  window.samples.clear();
  for (const uint64_t key : window.sorted) {
    window.samples.push_back(sample_at(begin + static_cast<int64_t>(static_cast<uint32_t>(key))));
  }
}

// Goes down the tree to one sample. The first part of a node has the largest power of two below
// its size, so that aligned positions stay together in a short window, too.
int64_t LengthOrder::shuffled(const Window& window, int64_t position) const {
  if (!shuffle_) return position;
  const uint64_t key =
      mix_bits(mix_bits(mix_bits(seed_, kTreeStream) ^ static_cast<uint64_t>(window.epoch)),
               static_cast<uint64_t>(window.number));
  int64_t begin = 0, size = std::ssize(window.samples);
  while (size > 1) {
    const auto first = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size - 1)));
    const int64_t second = size - first;
    const uint64_t node = static_cast<uint64_t>(begin) << kPlaceBits | static_cast<uint64_t>(size);
    const bool swapped = (mix_bits(key, node) & 1) != 0;
    const bool in_first = position < first;
    if (in_first && swapped) begin += second;
    if (!in_first && !swapped) begin += first;
    if (!in_first) position -= first;
    size = in_first ? first : second;
  }
  return begin;
}

const RowCuts::Cut* RowCuts::find(std::span<const int64_t> samples) const {
  if (cuts.empty() || std::ssize(samples) != batch_size) return nullptr;
  int64_t longest = 0;
  for (const int64_t sample : samples) longest = std::max(longest, order->length(sample));
  const auto found = std::ranges::lower_bound(cuts, longest, {}, &Cut::length);
  return found == cuts.end() ? nullptr : &*found;
}

namespace {

// Returns where the next elements go.
std::byte* keep_axes(const std::byte* from, std::span<const int64_t> axes,
                     std::span<const int64_t> kept, size_t bytes, std::byte* to) {
  if (axes.size() <= 1) {
    const size_t run = (kept.empty() ? 1 : static_cast<size_t>(kept[0])) * bytes;
    std::memmove(to, from, run);
    return to + run;
  }
  size_t stride = bytes;
  for (const int64_t axis : axes.subspan(1)) stride *= static_cast<size_t>(axis);
  for (int64_t i = 0; i < kept[0]; ++i, from += stride) {
    to = keep_axes(from, axes.subspan(1), kept.subspan(1), bytes, to);
  }
  return to;
}

}  // namespace

bool is_mask(std::string_view column) {
  return column.find("mask") != std::string_view::npos &&
         column.find("padding") == std::string_view::npos;
}

Status check_unused(const BoundColumn& column, int64_t sample, const std::byte* row, int64_t from,
                    int64_t used, std::optional<int64_t> ignored, std::string_view option) {
  const size_t bytes = dtype_size(column.dtype);
  for (int64_t i = from; i < column.row[0]; ++i) {
    const std::byte* const at = row + static_cast<size_t>(i) * bytes;
    const std::span element(at, bytes);
    const bool unused =
        ignored ? integer_at(column.dtype, at) == *ignored
                : std::ranges::all_of(element, [](std::byte b) { return b == std::byte{}; });
    if (unused) continue;
    return input_error(
        "{}: column '{}', sample {}: expected {} after the {} entries that {} counts, found {} as "
        "entry {}{}",
        column.source, column.name, sample, ignored ? "the ignore-index" : "0", used, option,
        element_text(column.dtype, at), i, ignored ? ": pad_value gives the ignore-index" : "");
  }
  return {};
}

void cut_rows(std::byte* rows, int64_t count, const Shape& from, const Shape& to,
              size_t element_bytes) {
  if (from == to) return;
  OFSDP_CHECK(from.rank() == to.rank(), "{} cut to {}", from.text(), to.text());
  const size_t stride = static_cast<size_t>(from.numel()) * element_bytes;
  std::byte* end = rows;
  for (int64_t i = 0; i < count; ++i) {
    end = keep_axes(rows + static_cast<size_t>(i) * stride, from.axes(), to.axes(), element_bytes,
                    end);
  }
}

}  // namespace ofsdp::runtime
