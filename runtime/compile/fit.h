// Changes to a run that make it need less memory: the answer of `fsdp-run plan --fit`, and the
// advice in the error about --memory-limit. Each one is tried by compiling it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/compile/compile.h"

namespace ofsdp::runtime {

// How a change acts on the trained weights, the mildest first: same bits; another order of sums;
// values of fewer bits; another number of samples that are normalized together or make an update.
enum class Effect { kSameBits, kRounding, kFewerBits, kOtherBatch };
OFSDP_ENUM_NAMES(Effect, {kSameBits, "same bits"}, {kRounding, "rounding"},
                 {kFewerBits, "fewer bits"}, {kOtherBatch, "other batch"})

// A changed run that fits.
struct FittingRun {
  std::vector<std::string> flags;  // words to append to the command
  int changes = 1;
  Effect effect = Effect::kSameBits;
  size_t peak_bytes = 0;          // of the rank that needs most
  std::optional<double> seconds;  // predicted for an update; none: nothing measures that run here
};

struct FitAnswer {
  size_t peak_bytes = 0;  // of the run as it is
  std::optional<double> seconds;
  std::vector<FittingRun> runs;  // smallest change first: number of changes, effect, seconds
  int compiled = 0;              // plans that were made
};

struct FitQuestion {
  const RunSettings& settings;
  const CandidateParts& parts;
  const CompiledRun& plan;  // of these settings
  int64_t bytes = 0;        // --fit
  // Opens the model again for other options (--param-dtype changes its graph).
  std::function<Result<ModelSetup>(const Options&)> open;
};

// Tries single changes, then pairs, then all that help; at most kMostFitPlans plans. If the run
// fits as it is, `runs` is empty. Only measures the CPU. Returns kInput if nothing fits.
Result<FitAnswer> find_fits(const FitQuestion& question);
inline constexpr int kMostFitPlans = 100;

// Returns "\nwould fit: FLAGS (N bytes); ..." for a run that exceeds --memory-limit. Compiles
// variants and lists those that fit: each change by itself; if none fits, all changes together;
// and the largest batch size (halved repeatedly) that fits. Every rank compiles all variants.
std::string advice(const RunSettings& settings, const CandidateParts& parts);

}  // namespace ofsdp::runtime
