// RowLog: a --log file or folder, which holds the numbers of the metrics rows once more, in the
// form of another tool.
//
//   csv:FILE            a header, then one line per row (RFC 4180); spaces join lists with one
//                       number per rank
//   tensorboard:FOLDER  an event file, framed as TFRecord
//                       (https://www.tensorflow.org/tutorials/load_data/tfrecord)
//   mlflow:FOLDER       MLflow's file store: FOLDER/EXPERIMENT/RUN with meta.yaml, metrics/,
//                       params/ and tags/ (https://mlflow.org/docs/latest/self-hosting)
//   wandb:FOLDER        an offline run of Weights & Biases:
//                       FOLDER/wandb/offline-run-DATE-ID/run-ID.wandb, records of protocol buffers
//                       framed as LevelDB's log; `wandb sync` sends it
//
// Scalars are step/NAME, eval/NAME and end/NAME. Values that are null are left out, except in csv.
//
// A resumed run appends to its csv file, with columns added that the file lacks, and gets a new
// event file in the same folder. In mlflow and wandb it goes on with the run whose checkpoints it
// reads, found by the first half of the run's ID, a hash of the checkpoint folder; if there is
// none, it is a new run. wandb's steps only grow, so its run leaves out rows of updates that it has
// already.
//
// Takes rows as the metrics file's JSON; a row allocates. Owns its files. The destructor writes
// rows that are kept back, and the state of a run that ended early. Errors: kInput from
// open_row_log; kFault with the file if a write fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::runtime {

// A run as other tools name it.
struct LoggedRun {
  std::string name = {};
  std::vector<std::pair<std::string, std::string>> settings = {};  // option and value
  std::string checkpoints = {};  // the folder that the run saves into; empty: none
  std::string resumed = {};      // the folder whose checkpoint the run goes on from; empty: none
};

// Returns option and value for each line of a configuration (YAML); nested keys have dots.
std::vector<std::pair<std::string, std::string>> flat_settings(const std::string& configuration);

class RowLog {
 public:
  virtual ~RowLog() = default;
  virtual Status write(const nlohmann::json& row) = 0;
};

struct RowLogOptions {
  std::vector<std::string> metrics = {};  // names in eval rows, "losses/NAME", watched_columns
  bool truncates = false;                 // a new run
  size_t number = 0;                      // distinguishes the process's logs
  LoggedRun run = {};
};

// `log` is the value of --log.
Result<std::unique_ptr<RowLog>> open_row_log(const std::string& log, const RowLogOptions& options);

// For the files that implement RowLog.

Result<std::unique_ptr<RowLog>> open_csv(const std::string& path, const RowLogOptions& options);
Result<std::unique_ptr<RowLog>> open_tensorboard(const std::string& folder,
                                                 const RowLogOptions& options);
Result<std::unique_ptr<RowLog>> open_mlflow(const std::string& folder,
                                            const RowLogOptions& options);
Result<std::unique_ptr<RowLog>> open_wandb(const std::string& folder, const RowLogOptions& options);

// Calls `take` with the tag and value of each number in `value`; objects and lists add a part to
// the tag. Slashes in parts become `slash`.
void each_number(const std::string& tag, const nlohmann::json& value, char slash,
                 const std::function<void(const std::string& tag, double value)>& take);

// Calls `take` with each scalar of a row but its step.
void each_scalar(const nlohmann::json& row, char slash,
                 const std::function<void(const std::string& tag, double value)>& take);

int64_t step_of_row(const nlohmann::json& row);
double seconds_since_1970();

// Returns 16 hexadecimal digits for a folder of checkpoints, and as many that differ between runs.
std::string run_id_prefix(const std::string& folder);
std::string new_run_id(const std::string& folder);

// Appends `bytes` to the file.
Status append_to(int fd, const std::string& path, std::string_view bytes);
Status make_log_folder(const std::string& folder);

// Protocol buffers' wire format (https://protobuf.dev/programming-guides/encoding).
std::string wire_varint(uint64_t value);
std::string wire_field(int number, std::string_view bytes);
std::string wire_number(int number, uint64_t value);  // a varint's field

}  // namespace ofsdp::runtime
