// Manifest: `manifest.json` as a value. It describes a checkpoint and says where every element is.
// FORMAT.md lists the keys.
//
// A slice is an element range in a flat float32 tensor, and the bytes that hold it. A tensor is
// named by a kind - "parameter", "statistic" (a running statistic, one copy for each rank) or an
// optimizer state ("exp_avg") - and by the initializer's name. In a local checkpoint a unit number
// replaces that name, and the slice holds the unit's flat elements (fsdp/plan/unit.h). Bytes are
// little-endian and dense. Each kChecksumBlock bytes in a slice have a checksum, so that a rank can
// check a range without reading more.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/tensor.h"

namespace ofsdp::fsdp {

inline constexpr int kCheckpointVersion = 1;
inline constexpr int64_t kChecksumBlock = int64_t{1} << 20;  // bytes
inline constexpr int64_t kMaxManifest = int64_t{1} << 30;    // bytes
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kParameterKind = "parameter";
inline constexpr const char* kStatisticKind = "statistic";

struct Slice {
  std::string kind;
  std::string name;
  int64_t first = 0;  // element in the flat tensor
  int64_t count = 0;
  int64_t offset = 0;  // byte in the file
  std::vector<uint32_t> checksums;

  int64_t bytes() const { return count * 4; }
  int64_t blocks() const { return (bytes() + kChecksumBlock - 1) / kChecksumBlock; }
};

struct CheckpointFile {
  std::string name;
  int rank = 0;  // the writer
  int64_t bytes = 0;
  std::optional<uint32_t> header;  // checksum over the bytes outside the slices
  std::vector<Slice> slices;       // in file order
};

struct NamedTensor {
  std::string name;
  Shape shape;
  bool operator==(const NamedTensor&) const = default;
};

// An optimizer state for one tensor.
struct StateTensor {
  std::string kind;  // in Manifest::states
  std::string name;
  Shape shape;
};

// A unit's layout, to which a local checkpoint's slices refer.
struct UnitLayout {
  struct Part {
    std::string name;
    int64_t offset = 0, numel = 0;
  };
  int64_t padded_numel = 0;
  std::vector<Part> params;
};

// The next update's position.
struct SamplerPosition {
  int64_t epoch = 0;
  int64_t sample = 0;  // samples used in the epoch
  int64_t samples = 0;
  int64_t global_batch = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;
};

// For float16 training.
struct SavedLossScale {
  double scale = 1;
  int64_t good_updates = 0;
  int64_t skipped_updates = 0;
};

// The loss and the metrics by name; no value means NaN or not measured.
struct SavedEvaluation {
  std::map<std::string, std::optional<double>> numbers;
};

// The checkpoints to keep: the newest `keep`, and the one with the best evaluation if `best` is
// set.
struct Retention {
  int64_t keep = 2;
  std::string best;   // the number of an evaluation that decides, or empty
  bool lower = true;  // smaller numbers are better
};

// Returns true if number `a` of an evaluation is better than `b`, not equal. NaN is never better,
// and all other numbers are better than NaN.
inline bool is_better(bool lower, double a, double b) {
  if (a != a || b != b) return a == a;
  return lower ? a < b : a > b;
}

struct Manifest {
  std::string type;      // sharded, full, local
  std::string save;      // names the save, as in every file's header
  int64_t sequence = 0;  // the latest save in a folder has the largest
  std::string model;     // the input file's absolute path
  std::string graph;     // hash (importer/file/onnx_file.h)
  std::string teacher;   // the --teacher file's identity (importer/passes/loss.h), or empty
  std::string edits;     // made to the model before training (importer/edit/model_edits.h)
  int world = 1;
  std::string strategy, wrap;
  int64_t step = 0;  // updates done
  SamplerPosition sampler;
  std::string schedule;  // as text for people
  double lr = 0;
  std::string optimizer;
  std::vector<std::string> states;
  std::optional<SavedLossScale> loss_scale;
  std::optional<SavedEvaluation> evaluation;  // at this step
  std::vector<NamedTensor> trained, statistics;
  // If empty, every trained tensor has every state, in the tensor's shape. Else lists all states;
  // state slices then have initializer names in a local checkpoint too.
  std::vector<StateTensor> state_tensors;
  std::vector<UnitLayout> units;
  std::vector<CheckpointFile> files;
};

// Returns every tensor's states.
std::vector<StateTensor> saved_states(const Manifest& manifest);

std::string to_text(const Manifest& manifest);
// Trusts nothing: on success every slice lies inside file and tensor, names no folder, and has as
// many checksums as it needs. Returns kInput with the expected and the found value, without the
// path.
Result<Manifest> parse_manifest(const std::string& text);
// Reads the manifest in a checkpoint's folder. Errors name the path.
Result<Manifest> read_manifest(const std::string& folder);

// The manifest part that a rank gives to rank 0: the files that it wrote.
std::string to_text(const std::vector<CheckpointFile>& files);
Result<std::vector<CheckpointFile>> parse_files(const std::string& text);

}  // namespace ofsdp::fsdp
