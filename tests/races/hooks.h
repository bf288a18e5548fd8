// Sends each access of instrumented code to a detector. Global, since instrumented code calls
// functions of fixed names. The detector is the caller's. Threads: one.
#pragma once

#include "tests/races/detector.h"

namespace ofsdp::races {

void watch(Detector* detector);  // null: nobody is told

}  // namespace ofsdp::races
