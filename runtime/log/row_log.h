// RowLog: a file of --log: the numbers of each row of the metrics once more, in another form.
//   csv:FILE            a header, then a line a row (RFC 4180); lists of a number a rank are joined
//                       by spaces
//   tensorboard:FOLDER  an event file of scalars step/NAME, eval/NAME and end/NAME, in TFRecord's
//                       framing (https://www.tensorflow.org/tutorials/load_data/tfrecord)
//
// Rows come as the metrics file's JSON; a row allocates.
//
// Ownership: owns the file descriptor. Threads: one. Errors: open is kInput; a failing write is
// kFault naming the file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/posix_file.h"

namespace ofsdp::runtime {

class RowLog {
 public:
  // `metrics`: names that eval rows have, "losses/NAME" of each loss, and watched_columns; `number`
  // tells logs of one process apart.
  static Result<RowLog> open(const std::string& log, const std::vector<std::string>& metrics,
                             bool truncates, size_t number);

  Status write(std::string_view row);

 private:
  Status begin(const std::vector<std::string>& metrics);
  std::string csv_line(const std::string& row) const;
  Status write_bytes(std::string_view bytes) const;

  bool is_csv_ = false;
  std::string path_;
  UniqueFd fd_;
  std::vector<std::string> columns_;  // of csv
};

}  // namespace ofsdp::runtime
