// A cable between two network namespaces on this machine, with a delay and a limited rate. Each has
// a TAP device; this process takes the kernel's frames out of one and puts them into the other,
// later. For kernels without netem; TCP at both ends behaves as on a long link.
//
//   delayed_link NAMESPACE DEVICE NAMESPACE DEVICE DELAY_MICROSECONDS MEGABITS_A_SECOND
//
// Prints "ready" on stdout when both devices exist. Each direction sends one frame after the other
// at the rate, keeps frames for at most kMaxQueued of sending time, and drops the rest, as a router
// does. This process ends with its parent. Killing it cuts the link, like pulling a cable: the
// devices keep their addresses until their namespaces go, and a process started later joins them
// again.
//
// Ownership: none. Threads: one. Errors: one line, exit status 1.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr nanoseconds kMaxQueued = std::chrono::milliseconds(100);
constexpr int kFramesATurn = 64;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "delayed_link: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

void enter(const std::string& name) {
  const std::string path = "/run/netns/" + name;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) fail(path);
  close(fd);
}

// Makes the device, or reopens it, in this process's present namespace.
int make_device(const std::string& name) {
  const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("/dev/net/tun");
  ifreq request{};
  std::snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name.c_str());
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (ioctl(fd, TUNSETIFF, &request) != 0 || ioctl(fd, TUNSETPERSIST, 1) != 0) {
    fail("device " + name);
  }
  return fd;
}

class Direction {
 public:
  Direction(int from, int to, nanoseconds delay, double bytes_a_nanosecond)
      : from_(from), to_(to), delay_(delay), rate_(bytes_a_nanosecond) {}

  void take() {
    for (int i = 0; i < kFramesATurn; ++i) {
      const ssize_t got = read(from_, buffer_.data(), buffer_.size());
      if (got <= 0) return;
      const auto now = Clock::now();
      const auto begin = std::max(now, sent_);
      if (begin - now > kMaxQueued) continue;
      sent_ = begin + nanoseconds(static_cast<int64_t>(static_cast<double>(got) / rate_));
      under_way_.push_back({sent_ + delay_, {buffer_.data(), buffer_.data() + got}});
    }
  }

  // A device that is not up yet takes no frame: it is lost.
  void give() {
    for (; !under_way_.empty() && under_way_.front().due <= Clock::now(); under_way_.pop_front()) {
      const std::vector<char>& bytes = under_way_.front().bytes;
      [[maybe_unused]] const ssize_t put = write(to_, bytes.data(), bytes.size());
    }
  }

  nanoseconds until_next() const {
    if (under_way_.empty()) return std::chrono::seconds(1);
    return std::max(nanoseconds(0), nanoseconds(under_way_.front().due - Clock::now()));
  }

 private:
  struct Frame {
    Clock::time_point due;
    std::vector<char> bytes;
  };
  const int from_, to_;
  const nanoseconds delay_;
  const double rate_;
  Clock::time_point sent_{};  // when the line is free again
  std::deque<Frame> under_way_;
  std::array<char, 1 << 17> buffer_;
};

[[noreturn]] void pass_frames(int a, int b, nanoseconds delay, double rate) {
  Direction there(a, b, delay, rate), back(b, a, delay, rate);
  while (true) {
    const nanoseconds wait = std::min(there.until_next(), back.until_next());
    const timespec longest{static_cast<time_t>(wait.count() / 1'000'000'000),
                           wait.count() % 1'000'000'000};
    pollfd events[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
    ppoll(events, 2, &longest, nullptr);
    there.take();
    back.take();
    there.give();
    back.give();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "delayed_link NAMESPACE DEVICE NAMESPACE DEVICE MICROSECONDS MEGABITS\n");
    return 1;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_TIMERSLACK, 1000);
  enter(argv[1]);
  const int a = make_device(argv[2]);
  enter(argv[3]);
  const int b = make_device(argv[4]);
  std::puts("ready");
  std::fflush(stdout);
  const double megabits = std::atof(argv[6]);
  pass_frames(a, b, std::chrono::microseconds(std::atoi(argv[5])), megabits / 8e3);
}
