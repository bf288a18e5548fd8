// Until a launcher listens at this port of this host. Ownership: none. Threads: one. Errors: a test
// failure when nobody does.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/cli/launch/endpoint.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

inline void await_meeting(int port) {
  const Endpoint endpoint{"127.0.0.1", port};
  for (int i = 0; i < 3000; ++i, usleep(10'000)) {
    if (connect_to(endpoint).problem.empty()) return;
  }
  ADD_FAILURE() << "nobody listens at port " << port;
}

}  // namespace ofsdp
