#include "runtime/data/sampler.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "runtime/data/row_lengths.h"

namespace ofsdp::runtime {

// At least 16 values: with fewer, the rounds have too few functions to choose from.
Permutation::Permutation(int64_t size, uint64_t seed, uint64_t stream)
    : size_(static_cast<uint64_t>(size)) {
  while (2 * half_bits_ < static_cast<int>(std::bit_width(size_ - 1))) ++half_bits_;
  const uint64_t key = mix_bits(mix_bits(seed), stream);
  for (int round = 0; round < kRounds; ++round) {
    keys_[static_cast<size_t>(round)] = mix_bits(key, static_cast<uint64_t>(round));
  }
}

int64_t Permutation::at(int64_t index) const {
  auto value = static_cast<uint64_t>(index);
  do value = encrypt(value);
  while (value >= size_);
  return static_cast<int64_t>(value);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t key : keys_) {
    const uint64_t next = left ^ (mix_bits(right ^ key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

namespace {

// Returns how many updates `samples` make.
int64_t count_updates(const SamplerOptions& options, int64_t samples) {
  const int64_t batch = options.global_batch();
  const bool short_one = !options.drop_last && options.samples != kEndless && samples % batch != 0;
  return samples / batch + (short_one ? 1 : 0);
}

// Returns the rank of each slot. The i-th of a rank's n slots lies at (2 i + 1) / 2 n of all, so
// equal parts are dealt in turn.
std::vector<int> deal_slots(std::span<const int64_t> parts) {
  struct Place {
    int64_t odd, part;
    int rank;
  };
  std::vector<Place> places;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (int64_t i = 0; i < parts[rank]; ++i) {
      places.push_back({2 * i + 1, parts[rank], static_cast<int>(rank)});
    }
  }
  std::ranges::stable_sort(
      places, [](const Place& a, const Place& b) { return a.odd * b.part < b.odd * a.part; });
  std::vector<int> ranks;
  for (const Place& place : places) ranks.push_back(place.rank);
  return ranks;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options)
    : options_(options), dealt_to_(deal_slots(options.parts)) {
  for (size_t i = 0; i < dealt_to_.size(); ++i) {
    if (dealt_to_[i] == options_.rank) slots_.push_back(static_cast<int64_t>(i));
  }
  updates_ = count_updates(options, options.samples);
  ResumePoint& start = options_.start;
  first_ = count_updates(options, options.samples - std::min(start.sample, options.samples));
  if (first_ > 0) return;
  start = {start.update, start.epoch + 1, 0};  // that epoch is finished
  first_ = updates_;
}

Result<Sampler> Sampler::make(const SamplerOptions& options) {
  OFSDP_CHECK(options.batch_size > 0 && options.grad_accum > 0 && options.ranks > 0, "sampler");
  OFSDP_CHECK(options.parts.empty() || (std::ssize(options.parts) == options.ranks &&
                                        options.batch_size == std::ranges::max(options.parts)),
              "parts");
  if (options.samples < 1) return input_error("data: expected at least 1 sample, found 0");
  if (options.drop_last && options.samples < options.global_batch()) {
    return input_error("--drop-last: expected at least one global batch of {} samples, found {}",
                       options.global_batch(), options.samples);
  }
  return Sampler(options);
}

Result<Sampler> Sampler::make_evaluation(int64_t samples, int64_t batch_size, int ranks, int rank,
                                         bool alone, std::vector<int64_t> parts) {
  SamplerOptions options;
  if (!alone) options.parts = std::move(parts);
  options.samples = samples;
  options.shuffle = false;
  options.batch_size = batch_size;
  options.ranks = ranks;
  options.rank = rank;
  if (alone) options.slices = 1;
  if (alone) options.sliced_samples = batch_size;
  return make(options);
}

ResumePoint Sampler::position(int64_t update) const {
  const ResumePoint& start = options_.start;
  const int64_t done = update - start.update;
  if (done < first_) return {update, start.epoch, start.sample + done * options_.global_batch()};
  const int64_t later = done - first_;
  return {update, start.epoch + 1 + later / updates_, later % updates_ * options_.global_batch()};
}

bool Sampler::ends_epochs(int64_t update, int64_t count) const {
  const ResumePoint next = position(update);
  return next.sample == 0 && next.epoch > 0 && next.epoch % count == 0;
}

int64_t Sampler::updates_until(int64_t epoch) const {
  const ResumePoint& start = options_.start;
  if (epoch <= start.epoch) return start.update;
  return start.update + first_ + (epoch - start.epoch - 1) * updates_;
}

int64_t Sampler::global_size(int64_t update) const {
  return std::min(options_.global_batch(), options_.samples - position(update).sample);
}

// Counts the indices part, part + parts, ... that lie in the global batch.
int64_t Sampler::dealt(int64_t update, int64_t part, int64_t parts) const {
  return std::max<int64_t>(0, (global_size(update) - part + parts - 1) / parts);
}

// With `parts`: how many of a micro-batch's slots, from the first on, have a sample.
int64_t Sampler::slots_filled(int64_t update, int64_t micro) const {
  const int64_t slots = std::ssize(dealt_to_);
  return std::clamp<int64_t>(global_size(update) - micro * slots, 0, slots);
}

int64_t Sampler::micro_size(int64_t update, int64_t micro, int rank) const {
  if (!dealt_to_.empty()) {
    const int64_t filled = slots_filled(update, micro);
    if (filled == std::ssize(dealt_to_)) return options_.parts[static_cast<size_t>(rank)];
    return std::count(dealt_to_.begin(), dealt_to_.begin() + filled, rank);
  }
  if (options_.slices > 0) {
    const int64_t slice = micro * options_.ranks + rank;
    return slice < options_.slices ? dealt(update, slice, options_.slices) : 0;
  }
  const int64_t share = dealt(update, rank, options_.ranks);
  return std::clamp<int64_t>(share - micro * options_.batch_size, 0, options_.batch_size);
}

int64_t Sampler::micro_size(int64_t update, int64_t micro) const {
  return micro_size(update, micro, options_.rank);
}

// Without parts the first rank has most samples, the last fewest.
bool Sampler::alike(int64_t update, int64_t micro) const {
  for (int rank = 1; !dealt_to_.empty() && rank < options_.ranks; ++rank) {
    if (micro_size(update, micro, 0) != micro_size(update, micro, rank)) return false;
  }
  return micro_size(update, micro, 0) == micro_size(update, micro, options_.ranks - 1);
}

int64_t Sampler::most_in_epoch() const {
  const int64_t samples = options_.samples;
  if (options_.slices > 0) return samples;
  if (dealt_to_.empty()) return (samples + options_.ranks - 1) / options_.ranks;
  const int64_t slots = std::ssize(dealt_to_), most = options_.batch_size;
  return samples / slots * most + std::min(samples % slots, most);
}

int64_t Sampler::micro_batch(int64_t update, int64_t micro, std::span<int64_t> samples) const {
  const int64_t size = micro_size(update, micro);
  const int64_t begin = position(update).sample;
  const bool shuffled = options_.shuffle && options_.samples != kEndless;
  const auto epoch = static_cast<uint64_t>(epoch_of(update));
  const Permutation order =
      shuffled ? Permutation(options_.samples, options_.seed, epoch) : Permutation();
  const LengthOrder* const by_length = options_.order.get();
  const bool sliced = options_.slices > 0, parted = !dealt_to_.empty();
  const int64_t stride = sliced ? options_.slices : options_.ranks;
  const int64_t first = options_.rank + micro * options_.ranks * (sliced ? 1 : options_.batch_size);
  const int64_t slots_before = micro * std::ssize(dealt_to_);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t position =
        begin + (parted ? slots_before + slots_[static_cast<size_t>(i)] : first + i * stride);
    samples[static_cast<size_t>(i)] = by_length  ? by_length->at(epoch_of(update), position)
                                      : shuffled ? order.at(position)
                                                 : position;
  }
  return size;
}

// Only an epoch's last update can be short; the first stands for the others. The epoch in which the
// run starts may end with another size than later ones.
void Sampler::add_sizes(int rank, std::vector<int64_t>& sizes) const {
  const int64_t begin = options_.start.update, last = begin + first_ - 1;
  const bool endless = options_.samples == kEndless;
  const int64_t next = endless ? begin : last + 1, next_last = endless ? begin : last + updates_;
  for (int64_t update : {begin, last, next, next_last}) {
    for (int64_t micro = 0; micro < options_.grad_accum; ++micro) {
      sizes.push_back(micro_size(update, micro, rank));
    }
  }
  std::ranges::sort(sizes, std::greater());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
}

std::vector<int64_t> Sampler::micro_batch_sizes() const {
  std::vector<int64_t> sizes;
  add_sizes(options_.rank, sizes);
  return sizes;
}

std::vector<int64_t> Sampler::micro_batch_sizes_of_all_ranks() const {
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < options_.ranks; ++rank) add_sizes(rank, sizes);
  return sizes;
}

}  // namespace ofsdp::runtime
