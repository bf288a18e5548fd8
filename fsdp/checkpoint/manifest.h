// Manifest: the content of a checkpoint's `manifest.json`, which describes the run and says in
// which file and at which byte every saved element is. FORMAT.md lists the keys. When a run saves,
// each rank hands rank 0 the list of files that it wrote (to_text below); rank 0 adds them to the
// manifest and writes it. When a run resumes, every rank reads it.
//
// A slice is a range of elements in one flattened tensor, and the bytes in a file that hold them.
// All values are float32; states that the run keeps in fewer bits are saved as the float32 values
// that they decode to. Bytes are little-endian, without gaps. Each kChecksumBlock bytes of a slice
// have a CRC-32C, so that a rank can check the range that it reads without reading the rest.
//
// Two names identify a slice's tensor: a kind - "parameter", "statistic" (a batch norm's running
// mean or variance, saved by every rank) or an optimizer state such as "exp_avg" - and the name of
// the ONNX initializer. A checkpoint has one of three types:
//
//   sharded  each element is saved by one rank that has it
//   full     the trained ONNX file holds the parameters; the rest as in a sharded one
//   local    each rank saves all that it holds, as it lies in memory. A slice is then a range of a
//            unit (a group of parameters that are gathered together, flattened into one padded
//            tensor), and the unit's number replaces the initializer's name. Statistics keep theirs
//
// Any number of ranks can read any type.
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
  int64_t first = 0;                // element in the flattened tensor
  int64_t count = 0;                // elements
  int64_t offset = 0;               // byte in the file
  std::vector<uint32_t> checksums;  // one per kChecksumBlock bytes

  int64_t bytes() const { return count * 4; }
  int64_t blocks() const { return (bytes() + kChecksumBlock - 1) / kChecksumBlock; }
};

struct CheckpointFile {
  std::string name;
  int rank = 0;  // which rank wrote it
  int64_t bytes = 0;
  std::optional<uint32_t> header;  // CRC-32C of the bytes outside the slices; none for model files
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

// Positions of the parameters in a unit; slices of local checkpoints count elements from the unit's
// start.
struct UnitLayout {
  struct Part {
    std::string name;
    int64_t offset = 0, numel = 0;
  };
  int64_t padded_numel = 0;
  std::vector<Part> params;
};

// The samples that the next update reads.
struct SamplerPosition {
  int64_t epoch = 0;
  int64_t sample = 0;        // samples already used in the epoch
  int64_t samples = 0;       // in the data set
  int64_t global_batch = 0;  // samples per update
  uint64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;
};

// The dynamic loss scale of float16 training.
struct SavedLossScale {
  double scale = 1;
  int64_t good_updates = 0;     // in a row
  int64_t skipped_updates = 0;  // since training began
};

// An evaluation's results by name: "loss", and each metric. No value: NaN, or not measured.
struct SavedEvaluation {
  std::map<std::string, std::optional<double>> numbers;
};

// The checkpoints that a run keeps in its folder (checkpoint_store.h): the newest `keep`, and the
// one with the best evaluation if `best` is set.
struct Retention {
  int64_t keep = 2;
  std::string best;   // the result that decides, "loss" or a metric's name; or empty
  bool lower = true;  // smaller results are better
};

// Returns true if result `a` is strictly better than result `b`. Every number is better than NaN;
// NaN is never better. `lower`: smaller results are better.
inline bool is_better(bool lower, double a, double b) {
  if (a != a || b != b) return a == a;
  return lower ? a < b : a > b;
}

struct Manifest {
  std::string type;      // "sharded", "full" or "local"
  std::string save;      // unique per save; the files' headers repeat it
  int64_t sequence = 0;  // counts the saves in a folder, so the latest has the largest
  std::string model;     // the input file's absolute path
  std::string graph;     // hash of the input file without weights (importer/file/onnx_file.h)
  std::string teacher;   // the --teacher file's identity (importer/passes/loss.h), or empty
  std::string edits;     // changes to the model before training (importer/edit/model_edits.h)
  std::vector<std::string> classes = {};  // names of the labels' classes, by number
  int world = 1;                          // ranks that saved
  std::string strategy, wrap;             // --strategy and --wrap of the run
  int64_t step = 0;                       // updates done
  SamplerPosition sampler;
  std::string schedule;  // the learning rate schedule, for people; never parsed
  double lr = 0;         // the learning rate
  std::string optimizer;
  std::vector<std::string> states;  // the kinds of optimizer states, such as "exp_avg"
  std::optional<SavedLossScale> loss_scale;
  std::optional<SavedEvaluation> evaluation;  // at this step
  // --early-stop: evaluations in a row without a better result, and the best one if there is any.
  std::vector<double> early_stop = {};
  std::vector<NamedTensor> trained, statistics;
  // Empty in the usual case: every trained tensor has all `states`, each in the tensor's shape.
  // Otherwise it lists the state tensors that exist. Slices of states then name initializers, even
  // in a local checkpoint.
  std::vector<StateTensor> state_tensors;
  std::vector<UnitLayout> units;
  std::vector<CheckpointFile> files;
};

// Returns all state tensors of the checkpoint, also if `state_tensors` is empty.
std::vector<StateTensor> saved_states(const Manifest& manifest);

std::string to_text(const Manifest& manifest);
// Checks all values: on success every slice is inside its file and its tensor and has all its
// checksums, and every file name is a plain name without a folder. Otherwise returns kInput with
// the expected and the found value, without the manifest's path.
Result<Manifest> parse_manifest(const std::string& text);
// Reads and parses the manifest in a checkpoint's folder. Errors name the path.
Result<Manifest> read_manifest(const std::string& folder);

// The part of the manifest that each rank gives to rank 0: the files that the rank wrote.
std::string to_text(const std::vector<CheckpointFile>& files);
Result<std::vector<CheckpointFile>> parse_files(const std::string& text);

}  // namespace ofsdp::fsdp
