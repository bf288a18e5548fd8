#include "runtime/options.h"

#include <algorithm>
#include <cmath>

namespace ofsdp::runtime {
namespace {

std::optional<int64_t> unless_weaker(const GivenCount& given, const GivenCount& global) {
  return given.source < global.source ? std::nullopt : given.value;
}

// A number of samples or forwards, and what messages call it.
struct Count {
  int64_t value;
  std::string name;
};

Count count_of(const GivenCount& given, std::optional<int64_t> value, int64_t otherwise,
               const char* flag) {
  const bool elsewhere = value && !given.said.empty();
  return {value.value_or(otherwise), elsewhere ? given.said : flag};
}

// global / (factor * ranks), or an error that shows the division. `factor` is batch size or
// grad-accum, `wanted` the one that is computed. Divides twice, so that nothing overflows.
Result<int64_t> quotient(const Count& global, const Count& factor, int ranks, const char* wanted) {
  const bool whole = global.value % ranks == 0 && global.value / ranks % factor.value == 0;
  if (!whole) {
    return input_error("{} {} is not a multiple of {} {} x {} ranks, so there is no whole {}",
                       global.name, global.value, factor.name, factor.value, ranks, wanted);
  }
  return global.value / ranks / factor.value;
}

Status check_product(const Count& size, const Count& accum, const Count& global, int ranks) {
  int64_t product = 0;
  const bool overflow = __builtin_mul_overflow(size.value, accum.value, &product) ||
                        __builtin_mul_overflow(product, int64_t{ranks}, &product);
  if (overflow) {
    return input_error("{} {} x {} {} x {} ranks passes 2^63", size.name, size.value, accum.name,
                       accum.value, ranks);
  }
  if (product == global.value || global.value == 0) return ok_status();
  return input_error("{} {} x {} {} x {} ranks is {}, but {} is {}", size.name, size.value,
                     accum.name, accum.value, ranks, product, global.name, global.value);
}

constexpr int64_t kSlices = 8;  // where nobody says how large a micro-batch is

// Slices of the global batch that no number of ranks changes: micro-batches of `size`, or kSlices.
// [Note: the same bits on any number of ranks] in fsdp/plan/plan.h.
BatchSizes cut_into_slices(int64_t global, std::optional<int64_t> size, int ranks) {
  const int64_t batch = size.value_or((global + kSlices - 1) / kSlices);
  const int64_t slices = (global + batch - 1) / batch;
  return {batch, (slices + ranks - 1) / ranks, global, slices};
}

}  // namespace

int64_t asked_ranks(const LaunchOptions& options) {
  if (options.hosts.empty()) return options.nproc_per_node * options.nnodes;
  int64_t ranks = 0;
  for (const HostSlots& host : options.hosts) ranks += std::ssize(host.slots);
  return ranks;
}

std::vector<std::string> named_weights(const Options& options) {
  std::vector<std::string> names = options.train;
  const std::vector<std::string>& adapted = options.edit.adapters.patterns;
  names.insert(names.end(), adapted.begin(), adapted.end());
  return names;
}

Result<BatchSizes> resolve_batch(const BatchOptions& given, Determinism determinism, int ranks,
                                 bool joins) {
  std::optional<int64_t> batch_size = given.batch_size.value;
  std::optional<int64_t> grad_accum = given.grad_accum.value;
  const bool across_ranks = determinism == Determinism::kAcrossRanks;
  if (given.global_batch_size.value) {
    batch_size = unless_weaker(given.batch_size, given.global_batch_size);
    grad_accum = unless_weaker(given.grad_accum, given.global_batch_size);
    if (across_ranks && !(batch_size && grad_accum)) {  // nothing has to divide by the ranks
      const int64_t global_size = *given.global_batch_size.value, parts = grad_accum.value_or(1);
      if (joins && !batch_size) batch_size = (global_size + parts - 1) / parts;
      return cut_into_slices(global_size, batch_size, ranks);
    }
  }
  const Count global =
      count_of(given.global_batch_size, given.global_batch_size.value, 0, "--global-batch-size");
  Count size = count_of(given.batch_size, batch_size, BatchSizes().batch_size, "--batch-size");
  Count accum = count_of(given.grad_accum, grad_accum, 1, "--grad-accum");
  if (given.global_batch_size.value && !batch_size) {
    OFSDP_ASSIGN_OR_RETURN(size.value, quotient(global, accum, ranks, "--batch-size"));
    size = count_of(given.batch_size, size.value, 0, "--batch-size");
  } else if (given.global_batch_size.value && !grad_accum) {
    OFSDP_ASSIGN_OR_RETURN(accum.value, quotient(global, size, ranks, "--grad-accum"));
    accum = count_of(given.grad_accum, accum.value, 0, "--grad-accum");
  }
  OFSDP_RETURN_IF_ERROR(check_product(size, accum, global, ranks));
  if (across_ranks) {
    return cut_into_slices(size.value * accum.value * ranks, size.value * (joins ? ranks : 1),
                           ranks);
  }
  return BatchSizes{size.value, accum.value, size.value * accum.value * ranks, 0};
}

// The bounds between ranks are rounded, so the parts make up the micro-batch.
Result<std::vector<int64_t>> batch_parts(const BatchSizes& batch, int ranks) {
  std::vector<int64_t> parts;
  if (batch.weights.empty()) return parts;
  OFSDP_REJECT_IF(std::ssize(batch.weights) != ranks,
                  "--batch-weights: expected {} weights, one for each rank, found {}", ranks,
                  batch.weights.size());
  const double most = std::ranges::max(batch.weights);  // the sum of quotients stays finite
  double sum = 0, all = 0;
  for (const double weight : batch.weights) all += weight / most;
  const int64_t rows = batch.batch_size * ranks;
  int64_t begin = 0;
  for (const double weight : batch.weights) {
    sum += weight / most;
    const auto end = static_cast<int64_t>(std::floor(static_cast<double>(rows) * sum / all + 0.5));
    OFSDP_REJECT_IF(end == begin,
                    "--batch-weights: rank {} gets none of the {} samples of a forward: expected "
                    "a larger --batch-size or a larger weight",
                    parts.size(), rows);
    parts.push_back(end - begin);
    begin = end;
  }
  const bool equal = std::ranges::count(parts, parts[0]) == ranks;
  return equal ? std::vector<int64_t>() : parts;
}

}  // namespace ofsdp::runtime
