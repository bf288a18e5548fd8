#include "runtime/cli/launch/signal_queue.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "runtime/log/stop_signal.h"

namespace ofsdp::cli {

SignalQueue::SignalQueue() {
  signal(SIGCHLD, SIG_DFL);  // an inherited "ignore" would hide the children's ends
  sigset_t mine;
  sigemptyset(&mine);
  for (int number : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&mine, number);
  for (int number : {SIGHUP, SIGQUIT, SIGUSR1}) {
    if (!is_ignored(number)) sigaddset(&mine, number);
  }
  sigprocmask(SIG_BLOCK, &mine, &before_);
  fd_ = UniqueFd(signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalQueue::Heard SignalQueue::wait(int fd, std::chrono::milliseconds patience) const {
  pollfd events[2] = {{fd_.get(), POLLIN, 0}, {fd, POLLIN, 0}};  // poll skips -1
  if (poll(events, 2, static_cast<int>(patience.count())) <= 0) return {};
  signalfd_siginfo info{};
  if (read(fd_.get(), &info, sizeof info) != sizeof info) return {};
  return {static_cast<int>(info.ssi_signo), info.ssi_code <= 0};
}

}  // namespace ofsdp::cli
