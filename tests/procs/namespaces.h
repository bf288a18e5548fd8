// Two hosts on one machine: network namespaces joined by a pair of virtual links with a limited rate
// and, where the kernel has netem, a delay. They share files and processes with this machine, and no
// network and no abstract sockets, which is what ranks need of a host.
//
// Needs root, `ip`, and a kernel that allows it; `Namespaces::possible` says so. Ownership: made and
// removed with the object; nothing is left when a test fails.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace ofsdp {

class Namespaces {
 public:
  static constexpr const char* kAddress[2] = {"10.77.31.1", "10.77.31.2"};

  Namespaces() {
    for (int h : {0, 1}) made_ = run("ip netns add {}", name(h)) && (h == 0 || made_);
    made_ = made_ && run("ip link add {} netns {} type veth peer name {} netns {}", link(0),
                         name(0), link(1), name(1));
    for (int h : {0, 1}) {
      made_ = made_ && run("ip -n {} addr add {}/24 dev {}", name(h), kAddress[h], link(h)) &&
              run("ip -n {} link set lo up", name(h)) &&
              run("ip -n {} link set {} up", name(h), link(h));
      if (!made_) return;
      if (run("tc -n {} qdisc add dev {} root netem delay 1ms rate 1gbit", name(h), link(h))) {
        continue;
      }
      run("tc -n {} qdisc add dev {} root tbf rate 1gbit burst 256kb latency 50ms", name(h),
          link(h));
    }
  }
  ~Namespaces() {
    for (int h : {0, 1}) run("ip netns del {}", name(h));
    unlink(agent_.c_str());
  }
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  bool made() const { return made_; }
  // In front of a command that is to run on that host.
  std::string on(int host) const { return fmt::format("ip netns exec {} ", name(host)); }
  std::vector<std::string> words_on(int host) const { return {"ip", "netns", "exec", name(host)}; }
  void cut() const { run("ip -n {} link set {} down", name(0), link(0)); }
  void join() const { run("ip -n {} link set {} up", name(0), link(0)); }

  // What mpirun calls in place of ssh: AGENT [-x] ADDRESS COMMAND...
  std::string agent() {
    agent_ = fmt::format("/tmp/ofsdp-agent-{}", getpid());
    std::ofstream(agent_) << "#!/bin/sh\n[ \"$1\" = -x ] && shift\nhost=$1; shift\ncase $host in\n"
                          << kAddress[0] << ") ns=" << name(0) << ";;\n*) ns=" << name(1)
                          << ";;\nesac\nexec ip netns exec $ns sh -c \"$*\"\n";
    return std::system(fmt::format("chmod +x {}", agent_).c_str()) == 0 ? agent_ : "";
  }

 private:
  static std::string name(int host) { return fmt::format("ofsdp-{}-{}", getpid(), host); }
  static std::string link(int host) { return fmt::format("of{}x{}", getpid() % 1000000, host); }

  template <typename... Args>
  static bool run(fmt::format_string<Args...> format, Args&&... args) {
    const std::string line = fmt::format(format, std::forward<Args>(args)...);
    return std::system((line + " >/dev/null 2>&1").c_str()) == 0;
  }

  bool made_ = false;
  std::string agent_;
};

}  // namespace ofsdp
