// ResumePoint: where the next update of a run begins, after `update` of them, `sample` samples into
// `epoch`. All 0 without a checkpoint. A value.
#pragma once

#include <cstdint>

namespace ofsdp::runtime {

struct ResumePoint {
  int64_t update = 0;
  int64_t epoch = 0;
  int64_t sample = 0;
};

}  // namespace ofsdp::runtime
