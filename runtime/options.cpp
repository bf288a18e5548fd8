#include "runtime/options.h"

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
void cut_into_slices(BatchOptions& batch, int64_t global, std::optional<int64_t> size, int ranks) {
  batch.global_batch_size = global;
  batch.batch_size = size.value_or((global + kSlices - 1) / kSlices);
  batch.slices = (global + batch.batch_size - 1) / batch.batch_size;
  batch.grad_accum = (batch.slices + ranks - 1) / ranks;
}

}  // namespace

Status reconcile_batch(Options& options, int ranks) {
  BatchOptions& batch = options.batch;
  const GivenCount& global = batch.given.global_batch_size;
  const auto counted = [&](std::optional<int64_t> size, std::optional<int64_t> accum) {
    struct Counts {
      Count size, accum, global;
    };
    return Counts{count_of(batch.given.batch_size, size, BatchOptions().batch_size, "--batch-size"),
                  count_of(batch.given.grad_accum, accum, 1, "--grad-accum"),
                  count_of(global, global.value, 0, "--global-batch-size")};
  };
  std::optional<int64_t> batch_size = batch.given.batch_size.value;
  std::optional<int64_t> grad_accum = batch.given.grad_accum.value;
  const bool across_ranks = options.launch.deterministic == Determinism::kAcrossRanks;
  if (global.value) {
    batch_size = unless_weaker(batch.given.batch_size, global);
    grad_accum = unless_weaker(batch.given.grad_accum, global);
    if (across_ranks && !(batch_size && grad_accum)) {  // nothing has to divide by the ranks
      cut_into_slices(batch, *global.value, batch_size, ranks);
      return ok_status();
    }
    if (batch_size && !grad_accum) {
      const auto counts = counted(batch_size, grad_accum);
      OFSDP_ASSIGN_OR_RETURN(grad_accum,
                             quotient(counts.global, counts.size, ranks, "--grad-accum"));
    }
    if (!batch_size) {
      const auto counts = counted(batch_size, grad_accum);
      OFSDP_ASSIGN_OR_RETURN(batch_size,
                             quotient(counts.global, counts.accum, ranks, "--batch-size"));
    }
  }
  const auto counts = counted(batch_size, grad_accum);
  OFSDP_RETURN_IF_ERROR(check_product(counts.size, counts.accum, counts.global, ranks));
  const int64_t size = counts.size.value, accum = counts.accum.value;
  batch.batch_size = size;
  batch.grad_accum = accum;
  batch.global_batch_size = size * accum * ranks;
  if (across_ranks) cut_into_slices(batch, batch.global_batch_size, size, ranks);
  return ok_status();
}

}  // namespace ofsdp::runtime
