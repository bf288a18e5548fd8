// Sends each access by instrumented code to a detector. Global, since instrumented code calls
// functions with fixed names. The caller owns the detector. Threads: one.
#pragma once

#include "tests/races/detector.h"

namespace ofsdp::races {

void watch(Detector* detector);  // null: no detector

}  // namespace ofsdp::races
