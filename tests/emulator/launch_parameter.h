// LaunchParameter: a kernel's parameter as a launch sees it, while the call lasts. Views. Threads:
// any. Errors: none.
#pragma once

#include <cstddef>

struct LaunchParameter {
  const void* value;
  size_t bytes;
  bool points;  // the parameter's type is a pointer
};
