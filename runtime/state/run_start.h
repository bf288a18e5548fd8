// RunStart: where a run begins, at its beginning or behind a checkpoint. Values.
#pragma once

#include <cstdint>

namespace ofsdp::runtime {

// Where the next update stands: after `update` of them, `sample` samples into `epoch`.
struct RunStart {
  int64_t update = 0;
  int64_t epoch = 0;
  int64_t sample = 0;
};

}  // namespace ofsdp::runtime
