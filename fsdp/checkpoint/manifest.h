// Manifest: what a checkpoint is and where every element of it is; `manifest.json` as a value.
//
// A slice is a range of elements of one flat float32 tensor and the bytes that hold them. Tensors
// are named by a kind - "parameter", "statistic" (a running statistic, one copy a rank) or a state
// of the optimizer ("exp_avg") - and by the initializer's name; in a local checkpoint by the
// number of a unit, whose flat elements they are then (fsdp/plan/unit.h). Bytes are little-endian
// and dense. Each kChecksumBlock bytes of a slice have a checksum of their own, so that a rank can
// check what it reads without reading more.
//
// parse_manifest trusts nothing: after it every slice is in its file, names no folder, has the
// right number of checksums and stays inside of its tensor. FORMAT.md has the keys.
//
// Errors: kInput, saying what was expected and found, without the path.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/core/shape.h"

namespace ofsdp::fsdp {

inline constexpr int kCheckpointVersion = 1;
inline constexpr int64_t kChecksumBlock = int64_t{1} << 20;  // bytes
inline constexpr int64_t kMostManifest = int64_t{1} << 30;   // bytes
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kParameterKind = "parameter";
inline constexpr const char* kStatisticKind = "statistic";

struct Slice {
  std::string kind;
  std::string name;
  int64_t first = 0;  // element of the flat tensor
  int64_t count = 0;
  int64_t offset = 0;  // byte of the file
  std::vector<uint32_t> checksums;

  int64_t bytes() const { return count * 4; }
  int64_t blocks() const { return (bytes() + kChecksumBlock - 1) / kChecksumBlock; }
};

struct CheckpointFile {
  std::string name;
  int rank = 0;  // that wrote its slices
  int64_t bytes = 0;
  std::optional<uint32_t> header;  // checksum of the bytes outside of the slices
  std::vector<Slice> slices;       // in the order of the file
};

struct NamedTensor {
  std::string name;
  Shape shape;
  bool operator==(const NamedTensor&) const = default;
};

// A state of the optimizer, of one tensor.
struct StateTensor {
  std::string kind;  // of Manifest::states
  std::string name;
  Shape shape;
};

// A unit as it was cut: what a local checkpoint's slices mean.
struct UnitLayout {
  struct Part {
    std::string name;
    int64_t offset = 0, numel = 0;
  };
  int64_t padded_numel = 0;
  std::vector<Part> params;
};

struct SamplerPosition {  // of the next update
  int64_t epoch = 0;
  int64_t sample = 0;  // samples of the epoch that were used
  int64_t samples = 0;
  int64_t global_batch = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;
};

struct SavedLossScale {  // of float16 training
  double scale = 1;
  int64_t good_updates = 0;
  int64_t skipped_updates = 0;
};

// The loss and the metrics by name; none: NaN, or there is none.
struct SavedEvaluation {
  std::map<std::string, std::optional<double>> numbers;
};

struct Manifest {
  std::string type;      // sharded, full, local
  std::string save;      // names the save: the same in every file's header
  int64_t sequence = 0;  // in its folder: the latest has the largest
  std::string model;     // absolute path of the input file
  std::string graph;     // its hash (importer/proto/graph_hash.h)
  std::string teacher;   // the identity of --teacher's file (importer/passes/teacher.h); or empty
  std::string edits;     // to that file before it was trained (importer/edit/model_edits.h)
  int world = 1;
  std::string strategy, wrap;
  int64_t step = 0;  // updates done
  SamplerPosition sampler;
  std::string schedule;  // in words, for people
  double lr = 0;
  std::string optimizer;
  std::vector<std::string> states;
  std::optional<SavedLossScale> loss_scale;
  std::optional<SavedEvaluation> evaluation;  // made at this step
  std::vector<NamedTensor> trained, statistics;
  // Empty: every trained tensor has every state, in its own shape. Else all there are; their slices
  // then have names of initializers in a local checkpoint too.
  std::vector<StateTensor> state_tensors;
  std::vector<UnitLayout> units;
  std::vector<CheckpointFile> files;
};

// Every state of every tensor.
std::vector<StateTensor> states_of(const Manifest& manifest);

std::string to_text(const Manifest& manifest);
Result<Manifest> parse_manifest(const std::string& text);
// Reads the one in a checkpoint's folder. Errors name the path.
Result<Manifest> read_manifest(const std::string& folder);

// A rank's own part, which rank 0 puts into the manifest: the files it wrote.
std::string to_text(const std::vector<CheckpointFile>& files);
Result<std::vector<CheckpointFile>> parse_files(const std::string& text);

}  // namespace ofsdp::fsdp
