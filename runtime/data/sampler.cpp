#include "runtime/data/sampler.h"

#include <algorithm>
#include <functional>

namespace ofsdp {

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  const int64_t batch = options.global_batch();
  updates_ = options.samples / batch;
  if (!options.drop_last && options.samples != kEndless && options.samples % batch != 0) ++updates_;
}

Result<Sampler> Sampler::make(const SamplerOptions& options) {
  OFSDP_CHECK(options.batch_size > 0 && options.grad_accum > 0 && options.ranks > 0, "sampler");
  if (options.samples < 1) return input_error("data: expected at least 1 sample, found 0");
  if (options.drop_last && options.samples < options.global_batch()) {
    return input_error("--drop-last: expected at least one global batch of {} samples, found {}",
                       options.global_batch(), options.samples);
  }
  return Sampler(options);
}

Result<Sampler> Sampler::make_evaluation(int64_t samples, int64_t batch_size, int ranks, int rank) {
  SamplerOptions options;
  options.samples = samples;
  options.shuffle = false;
  options.batch_size = batch_size;
  options.ranks = ranks;
  options.rank = rank;
  return make(options);
}

int64_t Sampler::global_size(int64_t update) const {
  const int64_t begin = update % updates_ * options_.global_batch();
  return std::min(options_.global_batch(), options_.samples - begin);
}

// Positions rank, rank + ranks, ... of the global batch.
int64_t Sampler::share(int64_t update, int rank) const {
  return (global_size(update) - rank + options_.ranks - 1) / options_.ranks;
}

int64_t Sampler::cut(int64_t share, int64_t micro) const {
  return std::clamp<int64_t>(share - micro * options_.batch_size, 0, options_.batch_size);
}

int64_t Sampler::micro_size(int64_t update, int64_t micro) const {
  return cut(share(update, options_.rank), micro);
}

int64_t Sampler::micro_batch(int64_t update, int64_t micro, std::span<int64_t> samples) const {
  const int64_t size = micro_size(update, micro);
  const int64_t begin = update % updates_ * options_.global_batch();
  const bool shuffled = options_.shuffle && options_.samples != kEndless;
  const auto epoch = static_cast<uint64_t>(epoch_of(update));
  const Permutation order =
      shuffled ? Permutation(options_.samples, options_.seed, epoch) : Permutation();
  for (int64_t i = 0; i < size; ++i) {
    const int64_t of_rank = micro * options_.batch_size + i;
    const int64_t position = begin + of_rank * options_.ranks + options_.rank;
    samples[static_cast<size_t>(i)] = shuffled ? order.at(position) : position;
  }
  return size;
}

// The last update of an epoch is the only one that can be short; the first is as good as any other.
void Sampler::add_sizes(int rank, std::vector<int64_t>& sizes) const {
  for (int64_t update : {int64_t{0}, updates_ - 1}) {
    for (int64_t micro = 0; micro < options_.grad_accum; ++micro) {
      sizes.push_back(cut(share(update, rank), micro));
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

}  // namespace ofsdp
