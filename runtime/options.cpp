#include "runtime/options.h"

namespace ofsdp {
namespace {

std::optional<int64_t> unless_weaker(const GivenCount& given, const GivenCount& global) {
  return given.source < global.source ? std::nullopt : given.value;
}

// global / (factor * ranks), or an error that shows the division. `factor` is batch size or
// grad-accum, `wanted` the one that is computed. Divides twice, so that nothing overflows.
Result<int64_t> quotient(int64_t global, int64_t factor, int ranks, const char* factor_name,
                         const char* wanted) {
  const bool whole = global % ranks == 0 && global / ranks % factor == 0;
  if (!whole) {
    return input_error(
        "--global-batch-size {} is not a multiple of {} {} x {} ranks, so there is no whole {}",
        global, factor_name, factor, ranks, wanted);
  }
  return global / ranks / factor;
}

Status check_product(int64_t batch_size, int64_t grad_accum, int64_t global, int ranks) {
  int64_t product = 0;
  const bool overflow = __builtin_mul_overflow(batch_size, grad_accum, &product) ||
                        __builtin_mul_overflow(product, int64_t{ranks}, &product);
  if (overflow) {
    return input_error("--batch-size {} x --grad-accum {} x {} ranks passes 2^63", batch_size,
                       grad_accum, ranks);
  }
  if (product == global || global == 0) return ok_status();
  return input_error(
      "--batch-size {} x --grad-accum {} x {} ranks is {}, but "
      "--global-batch-size is {}",
      batch_size, grad_accum, ranks, product, global);
}

constexpr int64_t kSlices = 8;  // where nobody says how large a micro-batch is

// Slices of the global batch that no number of ranks changes: micro-batches of `size`, or kSlices.
// [Note: the same bits on any number of ranks] in fsdp/plan.h.
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
      OFSDP_ASSIGN_OR_RETURN(
          grad_accum, quotient(*global.value, *batch_size, ranks, "--batch-size", "--grad-accum"));
    }
    if (!batch_size) {
      grad_accum = grad_accum.value_or(1);
      OFSDP_ASSIGN_OR_RETURN(
          batch_size, quotient(*global.value, *grad_accum, ranks, "--grad-accum", "--batch-size"));
    }
  }
  const int64_t size = batch_size.value_or(BatchOptions().batch_size);
  const int64_t accum = grad_accum.value_or(1);
  OFSDP_RETURN_IF_ERROR(check_product(size, accum, global.value.value_or(0), ranks));
  batch.batch_size = size;
  batch.grad_accum = accum;
  batch.global_batch_size = size * accum * ranks;
  if (across_ranks) cut_into_slices(batch, batch.global_batch_size, size, ranks);
  return ok_status();
}

}  // namespace ofsdp
