// Waits until a launcher listens at this port on this host. Ownership: none. Threads: one. Errors:
// a test failure if none does.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include "fsdp/comm/store/stream_socket.h"
#include "tests/support/namespaces.h"

namespace ofsdp {

inline void await_meeting(int port) {
  for (int i = 0; i < 3000; ++i, usleep(10'000)) {
    if (connect_to("127.0.0.1", port, StreamClock::time_point::max()).socket.valid()) return;
  }
  ADD_FAILURE() << "nobody listens at port " << port;
}

}  // namespace ofsdp
