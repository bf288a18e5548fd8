// Starts a thread that takes no signals: they are for the one that runs the schedule.
//
// The caller joins it. If the system has no room for another thread (a limit of processes), returns
// a fault that names `what`.
#pragma once

#include <pthread.h>

#include <system_error>
#include <thread>
#include <utility>

#include "kernels/base/signals_blocked.h"
#include "kernels/base/status.h"

namespace ofsdp::base {

// `name`: at most 15 characters, for lists of threads; `what`: for the message.
template <typename Body>
Result<std::thread> start_thread(const char* name, const char* what, Body body) {
  const AllSignalsBlocked blocked;
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& error) {
    return fault("{} cannot start: no thread to be had ({})", what, error.code().message());
  }
}

}  // namespace ofsdp::base
